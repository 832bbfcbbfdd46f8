//! Does commands, several at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clag_client::proto::retrieve_response::Stage;
use clag_client::proto::{AnswerRequest, GetContextRequest, RetrieveRequest, WatchRequest};
use clag_client::{Client, Tls};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::command::Command;
use crate::reply::{Failure, decoded, encoded};
use crate::work::Work;
use crate::{calls, ingest};

/// The clients by name, and the commands by id.
pub(crate) struct Runner {
    lines: mpsc::UnboundedSender<String>,
    clients: Mutex<HashMap<String, Client>>,
    works: Mutex<HashMap<u64, Arc<Work>>>,
}

impl Runner {
    pub(crate) fn new(lines: mpsc::UnboundedSender<String>) -> Self {
        Self { lines, clients: Mutex::default(), works: Mutex::default() }
    }

    /// Does a command at once where it needs no waiting, so that those after it see what it did; else begins it.
    pub(crate) fn hear(&self, command: Command) {
        let work = Arc::new(Work::new(command, self.lines.clone()));
        lock(&self.works).insert(work.command.id, work.clone());
        let done = match work.command.op.as_str() {
            "connect" => self.connect(&work.command),
            "close" => self.close(&work.command),
            "cancel" => self.target(&work.command).map(|target| target.cancel()).map(|()| json!({})),
            "resume" => self.target(&work.command).map(|target| target.resume()).map(|()| json!({})),
            "progress" => self.target(&work.command).map(|target| target.progress()),
            "roundtrip" => calls::roundtrip(&work.command).map(|data| json!({"data": data})),
            _ => match self.client(&work.command) {
                Ok(client) => {
                    tokio::spawn(at_work(client, work));
                    return;
                }
                Err(failure) => Err(failure),
            },
        };
        answer(&work, done);
    }

    fn connect(&self, command: &Command) -> Result<Value, Failure> {
        let target = command.target.as_str().unwrap_or_default();
        let mut builder = Client::builder(target).token(&command.token);
        if let Some(files) = &command.tls {
            let mut tls = Tls::new();
            if let Some(ca) = &files.ca {
                tls = tls.root_certificates(ca.as_str());
            }
            if let (Some(certificate), Some(key)) = (&files.certificate, &files.key) {
                tls = tls.identity(certificate.as_str(), key.as_str());
            }
            builder = builder.tls(tls);
        }
        if let Some(timeout) = command.timeout_ms {
            builder = builder.timeout(Duration::from_millis(timeout));
        }
        let client = builder.connect()?;
        lock(&self.clients).insert(command.name.clone(), client);
        Ok(json!({}))
    }

    /// A client is closed by dropping it and what its calls returned.
    fn close(&self, command: &Command) -> Result<Value, Failure> {
        self.client(command)?;
        lock(&self.clients).remove(&command.name);
        for work in lock(&self.works).values().filter(|work| work.command.name == command.name) {
            work.cancel();
        }
        Ok(json!({}))
    }

    fn client(&self, command: &Command) -> Result<Client, Failure> {
        let found = lock(&self.clients).get(&command.name).cloned();
        found.ok_or_else(|| Failure::invalid(format!("no client is called {}", command.name)))
    }

    fn target(&self, command: &Command) -> Result<Arc<Work>, Failure> {
        let found = command.target.as_u64().and_then(|id| lock(&self.works).get(&id).cloned());
        found.ok_or_else(|| Failure::invalid(format!("no command has the id {}", command.target)))
    }
}

/// Does a command until it is done or cancelled; a cancelled one is dropped, as a user of the client would.
async fn at_work(client: Client, work: Arc<Work>) {
    let client = match work.command.timeout_ms {
        Some(timeout) => client.with_timeout(Duration::from_millis(timeout)),
        None => client,
    };
    let done = tokio::select! {
        done = done(&client, &work) => done,
        () = work.until_cancelled() => Err(Failure::Command("CANCELLED", "the call was dropped".into())),
    };
    answer(&work, done);
}

async fn done(client: &Client, work: &Arc<Work>) -> Result<Value, Failure> {
    let command = &work.command;
    match command.op.as_str() {
        "call" => calls::call(client, work).await,
        "text" => {
            let made = client.create_memory("surrogates", command.value.as_str()).await?;
            Ok(json!({"value": made.memory.unwrap_or_default().text}))
        }
        "ingest" => ingest::ingest(client, work).await,
        "retrieve" => retrieve(client, work).await,
        "context" => {
            let request: GetContextRequest = decoded(&command.request)?;
            let context = client.get_context(request.retrieve.unwrap_or_default()).await?;
            Ok(json!({"response": encoded(&context)}))
        }
        "answer" => {
            let mut frames = client.answer(decoded::<AnswerRequest>(&command.request)?);
            while let Some(frame) = frames.try_next().await? {
                work.event(&json!({"response": encoded(&frame)}));
            }
            Ok(json!({}))
        }
        "watch" => watch(client, work).await,
        other => Err(Failure::Command("UNIMPLEMENTED", format!("no such command: {other}"))),
    }
}

async fn retrieve(client: &Client, work: &Work) -> Result<Value, Failure> {
    let mut stages = client.retrieve(decoded::<RetrieveRequest>(&work.command.request)?);
    while let Some(response) = stages.try_next().await? {
        let stage = match &response.stage {
            Some(Stage::Clusters(_)) => "clusters",
            Some(Stage::Memories(_)) => "memories",
            Some(Stage::Context(_)) => "context",
            Some(Stage::Done(_)) => "done",
            None => "",
        };
        work.event(&json!({"stage": stage, "response": encoded(&response)}));
    }
    Ok(json!({}))
}

async fn watch(client: &Client, work: &Work) -> Result<Value, Failure> {
    let mut left = work.command.limit.unwrap_or(u64::MAX);
    let mut responses = client.watch(decoded::<WatchRequest>(&work.command.request)?);
    while let Some(response) = responses.try_next().await? {
        work.event(&json!({"response": encoded(&response)}));
        left = left.saturating_sub(1);
        if left == 0 {
            break;
        }
    }
    Ok(json!({}))
}

fn answer(work: &Work, done: Result<Value, Failure>) {
    match done {
        Ok(content) => work.tell("ok", &content),
        Err(failure) => work.tell("error", &failure.to_json()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
