//! Streaming in, against a server whose answers the tests write.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clag_client::proto::ingest_request::Frame;
use clag_client::proto::{ErrorReason, IngestOpen, MemoryInput};
use clag_client::{BoxError, Client, Code, Error};
use clag_testing::{ScriptedServer, last_of};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

fn notes(count: u64) -> impl tokio_stream::Stream<Item = MemoryInput> + Send {
    tokio_stream::iter((1..=count).map(|number| MemoryInput::from(format!("note {number}"))))
}

fn with_reason(code: Code, reason: ErrorReason) -> Status {
    let details = ErrorDetails::with_error_info(reason.as_str_name(), "clag", HashMap::new());
    Status::with_error_details(code, "no", details)
}

#[tokio::test]
async fn every_item_has_an_outcome_and_the_counts_are_the_servers() -> Result<(), Error> {
    let server = ScriptedServer::ingest(|_, mut talk| async move {
        talk.open(1, 100).await?;
        talk.take_all(100).await.map(drop)
    });
    let mut stream = server.client().ingest("warehouse", notes(300));
    let mut seqs = Vec::new();
    while let Some(outcome) = stream.try_next().await? {
        assert!(outcome.is_final);
        assert_eq!(outcome.memory_id, format!("m-{}", outcome.seq));
        seqs.push(outcome.seq);
    }
    assert!(seqs.into_iter().eq(1..=300));
    assert_eq!(stream.totals().map(|totals| totals.created), Some(300));
    assert_eq!((stream.resumed_at(), stream.reconnects(), stream.durable_through()), (1, 0, 300));
    Ok(())
}

#[tokio::test]
async fn no_more_items_than_the_window_are_on_the_way_and_no_frame_holds_more_than_64() -> Result<(), Error> {
    const WINDOW: u64 = 100;
    let server = ScriptedServer::ingest(|_, mut talk| async move {
        talk.open(1, 100).await?;
        let (mut received, mut acked) = (0, 0);
        loop {
            match talk.read().await? {
                Some(Frame::Batch(batch)) => {
                    received = last_of(&batch);
                    if batch.items.len() > 64 || received > acked + WINDOW {
                        return Err(Status::resource_exhausted(format!("{received} of {acked}")));
                    }
                    // Less than came, so that what is on the way stays near the window.
                    let through = (acked + 20).min(received);
                    talk.ack(acked + 1, through, 100).await?;
                    acked = through;
                }
                Some(Frame::Finish(_)) => return talk.finished(received).await,
                other => return Err(Status::failed_precondition(format!("{other:?}"))),
            }
            if received == 1_000 && acked < received {
                talk.ack(acked + 1, received, 100).await?;
                acked = received;
            }
        }
    });
    let totals = server.client().ingest("warehouse", notes(1_000)).wait().await?;
    assert_eq!(totals.created, 1_000);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_breaks_goes_on_where_the_server_says() -> Result<(), Error> {
    let (seen, mut resumed) = mpsc::unbounded_channel();
    let server = ScriptedServer::ingest(move |number, mut talk| {
        let seen = seen.clone();
        async move {
            if number == 1 {
                talk.open(1, 100).await?;
                talk.expect_batch().await?;
                talk.ack(1, 10, 100).await?;
                return Err(Status::unavailable("going away"));
            }
            let open = talk.open(21, 100).await?;
            let batch = talk.expect_batch().await?;
            talk.ack(batch.first_seq, last_of(&batch), 100).await?;
            let _ = seen.send((open.stream_id, batch.first_seq, batch.items[0].text.clone()));
            talk.take_all(100).await.map(drop)
        }
    });
    let opening = IngestOpen::new("warehouse", "monday");
    let mut stream = server.client().ingest(opening, notes(50));
    let mut dispositions = HashMap::new();
    while let Some(outcome) = stream.try_next().await? {
        *dispositions.entry(outcome.disposition.as_str_name()).or_insert(0) += 1;
    }
    assert_eq!(resumed.recv().await, Some(("monday".into(), 21, "note 21".into())));
    assert_eq!(stream.reconnects(), 1);
    // Items 11 to 20 were stored by the connection that was lost, and their reports with it.
    let expected = HashMap::from([("DISPOSITION_CREATED", 40), ("DISPOSITION_UNSPECIFIED", 10)]);
    assert_eq!(dispositions, expected);
    Ok(())
}

#[tokio::test]
async fn the_same_stream_of_a_later_process_sends_only_the_rest() -> Result<(), Error> {
    let server = ScriptedServer::ingest(|_, mut talk| async move {
        talk.open(31, 100).await?;
        let batch = talk.expect_batch().await?;
        if batch.first_seq != 31 || batch.items[0].text != "note 31" {
            return Err(Status::failed_precondition("not the rest"));
        }
        talk.ack(31, last_of(&batch), 100).await?;
        talk.take_all(100).await.map(drop)
    });
    let mut stream = server.client().ingest(IngestOpen::new("warehouse", "monday"), notes(40));
    let totals = stream.wait().await?;
    assert_eq!((totals.created, stream.resumed_at()), (40, 31));
    Ok(())
}

#[tokio::test]
async fn a_stream_that_a_newer_opener_took_over_is_not_fought_for() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let server = ScriptedServer::ingest(move |_, mut talk| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            talk.open(1, 100).await?;
            Err(with_reason(Code::Aborted, ErrorReason::StreamFenced))
        }
    });
    let error = server.client().ingest("warehouse", notes(5)).wait().await.expect_err("fenced");
    assert_eq!((error.code(), error.reason()), (Code::Aborted, ErrorReason::StreamFenced));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_server_that_was_never_there_is_told_at_once() -> Result<(), Error> {
    let nowhere = tempfile::tempdir().expect("a temporary directory");
    let client = Client::connect(format!("unix:{}/s", nowhere.path().display()))?;
    let error = client.ingest("warehouse", notes(5)).wait().await.expect_err("nobody is there");
    assert_eq!(error.code(), Code::Unavailable);
    Ok(())
}

#[tokio::test]
async fn a_source_that_fails_ends_the_stream_after_what_it_gave_is_stored() {
    let server = ScriptedServer::ingest(|_, mut talk| async move {
        talk.open(1, 100).await?;
        talk.take_all(100).await.map(drop)
    });
    let items = [Ok("one"), Ok("two"), Err(BoxError::from("the sensor is gone"))];
    let mut stream = server.client().ingest("warehouse", tokio_stream::iter(items));
    let mut stored = 0;
    let error = loop {
        match stream.try_next().await {
            Ok(Some(_)) => stored += 1,
            Ok(None) => panic!("the failure of the source was lost"),
            Err(error) => break error,
        }
    };
    assert_eq!(stored, 2);
    assert!(matches!(error, Error::Source { seq: 3, .. }), "{error}");
    assert_eq!(error.to_string(), "item 3 cannot be sent: the sensor is gone");
    assert!(stream.try_next().await.expect("nothing follows").is_none());
}

#[tokio::test]
async fn a_consumer_that_reads_slowly_slows_the_source() -> Result<(), Error> {
    const ITEMS: u64 = 20_000;
    const AHEAD: u64 = 4_096 + 100 + 64; // outcomes that wait, the window, a frame
    let server = ScriptedServer::ingest(|_, mut talk| async move {
        talk.open(1, 100).await?;
        talk.take_all(100).await.map(drop)
    });
    let taken = Arc::new(AtomicU64::new(0));
    let counted = taken.clone();
    let items = notes(ITEMS).map(move |item| {
        counted.fetch_add(1, Ordering::Relaxed);
        item
    });
    let mut stream = server.client().ingest("warehouse", items);
    let mut read = 0;
    while stream.try_next().await?.is_some() {
        read += 1;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        let taken = taken.load(Ordering::Relaxed);
        assert!(taken <= read + AHEAD, "{taken} are taken when {read} are read");
    }
    assert_eq!(read, ITEMS);
    Ok(())
}

#[tokio::test]
async fn dropping_an_ingestion_cancels_its_call() -> Result<(), Error> {
    let (told, mut gone) = mpsc::unbounded_channel();
    let server = ScriptedServer::ingest(move |_, mut talk| {
        let told = told.clone();
        async move {
            talk.open(1, 100).await?;
            talk.expect_batch().await?;
            talk.ack(1, 1, 100).await?;
            talk.until_gone().await;
            let _ = told.send(());
            Ok(())
        }
    });
    let items = notes(3).chain(tokio_stream::pending());
    let mut stream = server.client().ingest("warehouse", items);
    assert_eq!(stream.try_next().await?.map(|outcome| outcome.seq), Some(1));
    drop(stream);
    assert_eq!(gone.recv().await, Some(()));
    Ok(())
}

#[tokio::test]
async fn a_panic_of_the_source_goes_on_in_the_consumer() {
    let server = ScriptedServer::ingest(|_, mut talk| async move {
        talk.open(1, 100).await?;
        talk.take_all(100).await.map(drop)
    });
    let client = server.client();
    let consumer = tokio::spawn(async move {
        let items = notes(5).map(|item| if item.text == "note 3" { panic!("a broken source") } else { item });
        client.ingest("warehouse", items).wait().await
    });
    let panic = consumer.await.expect_err("it panics").into_panic();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a broken source"));
}

#[tokio::test]
async fn the_token_goes_with_the_stream() -> Result<(), Error> {
    let server = ScriptedServer::ingest(|_, mut talk| async move {
        talk.open(1, 100).await?;
        match talk.metadata.get("authorization").map(|value| value.as_encoded_bytes() == b"Bearer secret") {
            Some(true) => talk.take_all(100).await.map(drop),
            _ => Err(with_reason(Code::Unauthenticated, ErrorReason::Unauthenticated)),
        }
    });
    let with_token = server.builder().token("secret").connect()?;
    assert_eq!(with_token.ingest("warehouse", notes(1)).wait().await?.created, 1);

    let error = server.client().ingest("warehouse", notes(1)).wait().await.expect_err("no token");
    assert_eq!(error.reason(), ErrorReason::Unauthenticated);
    Ok(())
}
