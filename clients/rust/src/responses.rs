//! Streams of what the server sends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::stream::unfold;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Response, Status, Streaming};

use crate::error::Error;

/// Responses of a call, as a [`Stream`]. The call begins when the first is asked for; dropping this cancels it.
/// After an error nothing follows.
#[must_use = "nothing is sent before a response is asked for"]
pub struct Responses<T>(Pin<Box<dyn Stream<Item = Result<T, Error>> + Send>>);

/// Where responses come from.
pub(crate) trait Feed: Send + 'static {
    type Item: Send + 'static;

    /// The next response; none at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Item>, Error>> + Send;
}

impl<T: Send + 'static> Responses<T> {
    /// The next response; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] where the call failed.
    pub async fn try_next(&mut self) -> Result<Option<T>, Error> {
        std::future::poll_fn(|context| self.0.as_mut().poll_next(context)).await.transpose()
    }

    pub(crate) fn new(feed: impl Feed<Item = T>) -> Self {
        Self(Box::pin(unfold(Some(feed), |feed| async {
            let mut feed = feed?;
            match feed.next().await {
                Ok(Some(response)) => Some((Ok(response), Some(feed))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })))
    }

    /// Responses of one call, which is made when the first is asked for and has `timeout` to end, if that is given.
    pub(crate) fn of_call<F>(timeout: Option<Duration>, call: F) -> Self
    where
        F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
    {
        Self::new(Call { timeout, deadline: None, unmade: Some(Box::pin(call)), responses: None })
    }
}

impl<T> Stream for Responses<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

impl<T> fmt::Debug for Responses<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Responses").finish_non_exhaustive()
    }
}

struct Call<T, F> {
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    unmade: Option<Pin<Box<F>>>,
    responses: Option<Streaming<T>>,
}

impl<T, F> Feed for Call<T, F>
where
    T: Send + 'static,
    F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
{
    type Item = T;

    async fn next(&mut self) -> Result<Option<T>, Error> {
        if self.unmade.is_some() {
            self.deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        }
        let Some(deadline) = self.deadline else {
            return Ok(self.read().await?);
        };
        match timeout_at(deadline, self.read()).await {
            Ok(response) => Ok(response?),
            Err(_) => Err(Error::local(Code::DeadlineExceeded, "the deadline passed")),
        }
    }
}

impl<T, F> Call<T, F>
where
    F: Future<Output = Result<Response<Streaming<T>>, Status>>,
{
    async fn read(&mut self) -> Result<Option<T>, Status> {
        if let Some(call) = self.unmade.take() {
            self.responses = Some(call.await?.into_inner());
        }
        match &mut self.responses {
            Some(responses) => responses.message().await,
            None => Ok(None),
        }
    }
}
