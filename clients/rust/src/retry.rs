//! When, and for how long, a broken stream is opened again.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::error::Error;
use crate::proto::ErrorReason;

/// Retries with growing, jittered pauses, within a budget of time.
///
/// The bound is a time and not a number of attempts: a server that restarts loads its models and checks its index,
/// 6 to 16 s on two cores, and how many attempts fit in there depends on the pauses.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// How long a server that went away is looked for before the error is returned; 120 s by default.
    pub reconnect_budget: Duration,
    /// Pause before the first retry, at most; 0.1 s by default. Each pause is a random part of its limit, so that
    /// many clients of one server do not come back at the same moment.
    pub first_pause: Duration,
    /// Limit of every pause but those that the server asks for; 5 s by default.
    pub longest_pause: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            reconnect_budget: Duration::from_secs(120),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// How long to wait after the `failures`-th failure in a row, `away` after the first of them; `None` when the
    /// error is to be returned.
    fn pause(&self, failures: u32, away: Duration, error: &Error) -> Option<Duration> {
        if error.reason() == ErrorReason::StreamFenced {
            return None;
        }
        let pause = match error.retry_after() {
            Some(asked) => asked.mul_f64(1.0 + fastrand::f64() / 5.0),
            None if error.code() == Code::Unavailable => {
                // The exponent is bounded because long outages have thousands of failures, and durations an end.
                let limit = self.first_pause.saturating_mul(1 << failures.saturating_sub(1).min(30));
                limit.min(self.longest_pause).mul_f64(0.5 + fastrand::f64() / 2.0)
            }
            None => return None,
        };
        (away + pause <= self.reconnect_budget).then_some(pause)
    }
}

/// Failures in a row of one stream, and the waiting between them.
#[derive(Debug)]
pub(crate) struct Outage {
    policy: RetryPolicy,
    failures: u32,
    since: Instant,
    connected: Option<Instant>,
}

impl Outage {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self { policy, failures: 0, since: Instant::now(), connected: None }
    }

    /// Hears that a connection stands.
    pub(crate) fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    /// Waits until the next attempt, after `error` ended the connection or the attempt at one.
    ///
    /// A connection that brought the stream `forward`, or that stood for longer than the longest pause (a stream
    /// may have nothing to do for hours), ends the outage before it.
    ///
    /// # Errors
    ///
    /// The error, when trying again is of no use or the budget is used up.
    pub(crate) async fn wait(&mut self, error: Error, forward: bool) -> Result<(), Error> {
        let now = Instant::now();
        let stood = self.connected.take().map_or(Duration::ZERO, |connected| now - connected);
        if forward || stood > self.policy.longest_pause || self.failures == 0 {
            (self.failures, self.since) = (0, now);
        }
        self.failures = self.failures.saturating_add(1);
        match self.policy.pause(self.failures, now - self.since, &error) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic::Status;
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    fn away() -> Error {
        Error::local(Code::Unavailable, "gone")
    }

    fn with_reason(code: Code, reason: &str, retry: Option<Duration>) -> Error {
        let mut details = ErrorDetails::with_error_info(reason, "clag", HashMap::new());
        if retry.is_some() {
            details.set_retry_info(retry);
        }
        Status::with_error_details(code, "no", details).into()
    }

    #[test]
    fn pauses_grow_to_their_limit_and_are_never_less_than_half_of_it() {
        let policy = RetryPolicy::default();
        for (failures, limit) in [(1, 0.1), (2, 0.2), (5, 1.6), (7, 5.0), (100_000, 5.0)] {
            let pause = policy.pause(failures, Duration::ZERO, &away()).expect("within the budget").as_secs_f64();
            assert!((limit / 2.0..=limit).contains(&pause), "{failures}: {pause}");
        }
    }

    #[test]
    fn the_server_is_waited_for_as_long_as_it_asks() {
        let asked = Duration::from_secs(10);
        let error = with_reason(Code::ResourceExhausted, "ERROR_REASON_OVERLOADED", Some(asked));
        let pause = RetryPolicy::default().pause(1, Duration::ZERO, &error).expect("it may be tried again");
        assert!((asked..=asked.mul_f64(1.2)).contains(&pause));
    }

    #[test]
    fn what_cannot_be_helped_by_waiting_is_returned() {
        let policy = RetryPolicy::default();
        let fenced = with_reason(Code::Aborted, "ERROR_REASON_STREAM_FENCED", Some(Duration::from_secs(1)));
        for error in [fenced, Error::local(Code::NotFound, "no"), Error::Options("no".into())] {
            assert_eq!(policy.pause(1, Duration::ZERO, &error), None, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stays_away_is_given_up_after_the_budget() {
        let begun = Instant::now();
        let mut outage = Outage::new(RetryPolicy::default());
        let mut attempts = 0;
        while outage.wait(away(), false).await.is_ok() {
            attempts += 1;
        }
        let looked = begun.elapsed();
        assert!((Duration::from_secs(114)..=Duration::from_secs(120)).contains(&looked), "{looked:?}");
        assert!(attempts > 24, "{attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_comes_forward_begins_a_new_budget_each_time() {
        let mut outage = Outage::new(RetryPolicy::default());
        for _ in 0..5_000 {
            outage.wait(away(), true).await.expect("it came forward");
        }
        outage.wait(away(), false).await.expect("the first of a new outage");
        outage.connected();
        tokio::time::advance(Duration::from_secs(200)).await;
        outage.wait(away(), false).await.expect("the connection stood for long");
    }
}
