//! Retrieving, watching and plain calls, against a server whose answers the tests write.

use std::time::Duration;

use clag_client::proto::retrieve_response::Stage;
use clag_client::proto::{
    ClusterSelection, RetrieveDone, RetrieveRequest, RetrieveResponse, Revision, WatchRequest, WatchResponse,
};
use clag_client::{Code, Error};
use clag_testing::ScriptedServer;
use tokio::sync::mpsc;
use tonic::Status;

fn stage(stage: Stage) -> RetrieveResponse {
    RetrieveResponse { stage: Some(stage) }
}

fn changes(through: &str) -> WatchResponse {
    WatchResponse { through: Some(Revision { token: through.into() }), ..WatchResponse::default() }
}

/// A server that sends stage one and then nothing, and tells when its caller is gone.
fn stuck(told: mpsc::UnboundedSender<()>) -> ScriptedServer {
    ScriptedServer::retrieve(move |_, talk| {
        let told = told.clone();
        async move {
            let _ = talk.responses.send(Ok(stage(Stage::Clusters(ClusterSelection::default())))).await;
            talk.responses.closed().await;
            let _ = told.send(());
            Ok(())
        }
    })
}

#[tokio::test]
async fn stages_come_one_by_one_and_end() -> Result<(), Error> {
    let server = ScriptedServer::retrieve(|_, talk| async move {
        let _ = talk.responses.send(Ok(stage(Stage::Clusters(ClusterSelection::default())))).await;
        let _ = talk.responses.send(Ok(stage(Stage::Done(RetrieveDone::default())))).await;
        Ok(())
    });
    let mut stages = server.client().retrieve(RetrieveRequest::new("warehouse", "where is the pallet?"));
    assert!(matches!(stages.try_next().await?.and_then(|one| one.stage), Some(Stage::Clusters(_))));
    assert!(matches!(stages.try_next().await?.and_then(|one| one.stage), Some(Stage::Done(_))));
    assert!(stages.try_next().await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_retrieval_that_gets_stuck_ends_at_its_deadline_and_its_call_with_it() -> Result<(), Error> {
    let (told, mut gone) = mpsc::unbounded_channel();
    let server = stuck(told);
    let client = server.client().with_timeout(Duration::from_millis(300));
    let mut stages = client.retrieve(RetrieveRequest::new("warehouse", "where is the pallet?"));
    let error = loop {
        match stages.try_next().await {
            Ok(Some(_)) => (),
            Ok(None) => panic!("the deadline was lost"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(stages.try_next().await?.is_none());
    assert_eq!(gone.recv().await, Some(()));
    Ok(())
}

#[tokio::test]
async fn dropping_a_retrieval_cancels_its_call() -> Result<(), Error> {
    let (told, mut gone) = mpsc::unbounded_channel();
    let server = stuck(told);
    let mut stages = server.client().retrieve(RetrieveRequest::new("warehouse", "where is the pallet?"));
    stages.try_next().await?;
    drop(stages);
    assert_eq!(gone.recv().await, Some(()));
    Ok(())
}

#[tokio::test]
async fn a_watch_goes_on_after_the_last_response_when_its_connection_breaks() -> Result<(), Error> {
    let (told, mut asked) = mpsc::unbounded_channel();
    let server = ScriptedServer::watch(move |number, talk| {
        let _ = told.send(talk.request.get_ref().start_after.clone().map(|revision| revision.token));
        async move {
            let responses = if number == 1 { ["r1", "r2"] } else { ["r3", "r4"] };
            for through in responses {
                let _ = talk.responses.send(Ok(changes(through))).await;
            }
            Err(Status::unavailable("going away"))
        }
    });
    let mut watch = server.client().watch(WatchRequest::new("warehouse"));
    for through in ["r1", "r2", "r3", "r4"] {
        let seen = watch.try_next().await?.and_then(|response| response.through);
        assert_eq!(seen.map(|revision| revision.token).as_deref(), Some(through));
    }
    assert_eq!(asked.recv().await, Some(None));
    assert_eq!(asked.recv().await, Some(Some("r2".into())));
    Ok(())
}

#[tokio::test]
async fn a_watch_that_cannot_begin_is_told_at_once() {
    let server = ScriptedServer::watch(|_, _| async { Err(Status::unavailable("not for you")) });
    let error = server.client().watch(WatchRequest::new("warehouse")).try_next().await.expect_err("refused");
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "not for you".into()));
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_before_it_is_sent() {
    let server = ScriptedServer::watch(|_, _| async { Ok(()) });
    let error = server.client().create_memory("warehouse", "x".repeat(5 << 20)).await.expect_err("too large");
    assert_eq!(error.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_call_that_the_server_does_not_have_is_told_as_the_server_says() {
    let server = ScriptedServer::watch(|_, _| async { Ok(()) });
    let error = server.client().server_info().await.expect_err("there is no such service");
    assert_eq!(error.code(), Code::Unimplemented);
}
