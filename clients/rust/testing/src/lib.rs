//! A server of `MemoryService` whose answers a test writes, on a Unix socket of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clag_client::proto::{
    IngestRequest, IngestResponse, RetrieveRequest, RetrieveResponse, WatchRequest, WatchResponse,
};
use clag_client::{Client, ClientBuilder};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

mod talk;

pub use talk::{IngestTalk, last_of};

#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, rustdoc::all)]
mod generated {
    include!("generated/clag.v1.rs");
}

use generated::memory_service_server::{MemoryService, MemoryServiceServer};

/// What a script does with a call; an error is the status that the call ends with.
type Playing = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

type Script<Q, R> = Arc<dyn Fn(usize, Talk<Q, R>) -> Playing + Send + Sync>;

/// One call: what was asked, and where responses go.
#[derive(Debug)]
pub struct Talk<Q, R> {
    /// The request with its metadata.
    pub request: Request<Q>,
    /// Responses to the client. Closed when the call is gone.
    pub responses: mpsc::Sender<Result<R, Status>>,
}

/// A running server; it stops when it is dropped.
#[derive(Debug)]
pub struct ScriptedServer {
    target: String,
    _directory: tempfile::TempDir,
    _stop: oneshot::Sender<()>,
}

impl ScriptedServer {
    /// Serves `Ingest` by a script, which is told the number of the call, from 1.
    pub fn ingest<F, P>(script: F) -> Self
    where
        F: Fn(usize, IngestTalk) -> P + Send + Sync + 'static,
        P: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let ingest: Script<_, _> = Arc::new(move |number, talk| Box::pin(script(number, IngestTalk::new(talk))));
        Self::start(Service { ingest: Some(ingest), ..Service::default() })
    }

    /// Serves `Retrieve` by a script.
    pub fn retrieve<F, P>(script: F) -> Self
    where
        F: Fn(usize, Talk<RetrieveRequest, RetrieveResponse>) -> P + Send + Sync + 'static,
        P: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let retrieve: Script<_, _> = Arc::new(move |number, talk| Box::pin(script(number, talk)));
        Self::start(Service { retrieve: Some(retrieve), ..Service::default() })
    }

    /// Serves `Watch` by a script.
    pub fn watch<F, P>(script: F) -> Self
    where
        F: Fn(usize, Talk<WatchRequest, WatchResponse>) -> P + Send + Sync + 'static,
        P: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let watch: Script<_, _> = Arc::new(move |number, talk| Box::pin(script(number, talk)));
        Self::start(Service { watch: Some(watch), ..Service::default() })
    }

    /// Begins a client of it.
    pub fn builder(&self) -> ClientBuilder {
        Client::builder(&self.target)
    }

    /// A client of it.
    ///
    /// # Panics
    ///
    /// If the client refuses the address.
    #[must_use]
    pub fn client(&self) -> Client {
        self.builder().connect().expect("the address of a socket is right")
    }

    fn start(service: Service) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).expect("a socket in a directory of our own");
        let (stop, stopped) = oneshot::channel();
        let serving = tonic::transport::Server::builder()
            .add_service(MemoryServiceServer::new(service))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                let _ = stopped.await; // an error is the dropped sender: the same wish
            });
        tokio::spawn(serving);
        Self { target: format!("unix:{}", path.display()), _directory: directory, _stop: stop }
    }
}

#[derive(Default)]
struct Service {
    calls: AtomicUsize,
    ingest: Option<Script<Streaming<IngestRequest>, IngestResponse>>,
    retrieve: Option<Script<RetrieveRequest, RetrieveResponse>>,
    watch: Option<Script<WatchRequest, WatchResponse>>,
}

impl Service {
    fn play<Q, R: Send + 'static>(
        &self,
        script: Option<&Script<Q, R>>,
        request: Request<Q>,
    ) -> Result<Response<BoxStream<R>>, Status> {
        let script = script.ok_or_else(|| Status::unimplemented("the test has no script for this"))?;
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let (responses, sent) = mpsc::channel(1);
        let playing = script(number, Talk { request, responses: responses.clone() });
        tokio::spawn(async move {
            if let Err(status) = playing.await {
                let _ = responses.send(Err(status)).await; // the client may be gone
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(sent))))
    }
}

#[tonic::async_trait]
impl MemoryService for Service {
    async fn ingest(
        &self,
        request: Request<Streaming<IngestRequest>>,
    ) -> Result<Response<BoxStream<IngestResponse>>, Status> {
        self.play(self.ingest.as_ref(), request)
    }

    async fn retrieve(
        &self,
        request: Request<RetrieveRequest>,
    ) -> Result<Response<BoxStream<RetrieveResponse>>, Status> {
        self.play(self.retrieve.as_ref(), request)
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<BoxStream<WatchResponse>>, Status> {
        self.play(self.watch.as_ref(), request)
    }
}
