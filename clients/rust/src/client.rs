//! The client.

use std::future::Future;
use std::time::Duration;

use futures_core::Stream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::connect::{ClientBuilder, Transport};
use crate::error::Error;
use crate::failure::MAX_MESSAGE_BYTES;
use crate::ingestion::Ingestion;
use crate::item::IntoItem;
use crate::proto::admin_service_client::AdminServiceClient;
use crate::proto::cluster_service_client::ClusterServiceClient;
use crate::proto::memory_service_client::MemoryServiceClient;
use crate::proto::{
    AnswerRequest, AnswerResponse, CreateMemoryRequest, CreateMemoryResponse, DeleteMemoryRequest,
    DeleteMemoryResponse, GetContextRequest, GetContextResponse, GetMemoryRequest, GetServerInfoRequest,
    GetServerInfoResponse, IngestOpen, Memory, MemoryInput, RetrieveRequest, RetrieveResponse, WatchRequest,
    WatchResponse,
};
use crate::responses::Responses;
use crate::retry::{Outage, RetryPolicy};
use crate::watch;

/// A connection to a CLAG server. Clones are cheap and share it.
///
/// Dropping a future or a stream that a call returned cancels the call. For calls that have no method here, the
/// generated stubs are at hand:
///
/// ```no_run
/// # async fn example(client: clag_client::Client) -> Result<(), clag_client::Error> {
/// use clag_client::proto::ListClustersRequest;
///
/// let request = ListClustersRequest { namespace: "warehouse".into(), ..Default::default() };
/// let clusters = client.call(client.clusters().list_clusters(client.request(request))).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
    timeout: Duration,
    retry: RetryPolicy,
}

impl Client {
    pub(crate) fn new(transport: Transport, timeout: Duration, retry: RetryPolicy) -> Self {
        Self { transport, timeout, retry }
    }

    /// Makes a client for a Unix socket (`unix:PATH` or `/PATH`) or a loopback `host:port`, without a token.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    pub fn connect(target: impl Into<String>) -> Result<Self, Error> {
        Self::builder(target).connect()
    }

    /// Begins a client with options: token, TLS, deadline.
    pub fn builder(target: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(target.into())
    }

    /// The same connection with another deadline of unary calls, retrievals and answers.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The generated stub of `MemoryService`.
    #[must_use]
    pub fn memory(&self) -> MemoryServiceClient<Transport> {
        MemoryServiceClient::new(self.transport.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The generated stub of `ClusterService`.
    #[must_use]
    pub fn clusters(&self) -> ClusterServiceClient<Transport> {
        ClusterServiceClient::new(self.transport.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The generated stub of `AdminService`.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Transport> {
        AdminServiceClient::new(self.transport.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// A request for a stub that tells the server this client's deadline.
    #[must_use]
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    /// Waits for a unary call of a stub, at most until this client's deadline.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], `DEADLINE_EXCEEDED` among them.
    pub async fn call<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(response) => Ok(response?.into_inner()),
            Err(_) => Err(Error::local(Code::DeadlineExceeded, "the deadline passed")),
        }
    }

    /// Responses of a call of a stub that streams from the server, with a deadline for all of it if one is given.
    ///
    /// ```no_run
    /// # async fn example(client: clag_client::Client) -> Result<(), clag_client::Error> {
    /// use clag_client::proto::ExportRequest;
    ///
    /// let request = ExportRequest { namespace: "warehouse".into(), ..Default::default() };
    /// let mut stub = client.admin();
    /// let mut batches = client.stream(None, async move { stub.export(request).await });
    /// while let Some(batch) = batches.try_next().await? {
    ///     println!("{} rows", batch.records.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream<T, F>(&self, timeout: Option<Duration>, call: F) -> Responses<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
    {
        Responses::of_call(timeout, call)
    }

    /// Streams memories in; see [`Ingestion`].
    ///
    /// `opening` is a namespace, for a stream that survives reconnects and not this process, or an [`IngestOpen`]
    /// with a `stream_id`: with the same id and the same items again, the server's position is found and only the
    /// rest is sent. `items` is read as fast as the server takes them; [`tokio_stream::iter`] makes a stream of any
    /// iterator. Items are texts, [`MemoryInput`]s, or results of them where reading can fail.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn ingest<S>(&self, opening: impl Into<IngestOpen>, items: S) -> Ingestion
    where
        S: Stream<Item: IntoItem> + Send + 'static,
    {
        Ingestion::start(self.memory(), opening.into(), items, Outage::new(self.retry.clone()))
    }

    /// Retrieves in stages: clusters, memories, the context if a budget was given, done.
    pub fn retrieve(&self, request: RetrieveRequest) -> Responses<RetrieveResponse> {
        let mut stub = self.memory();
        let request = self.request(request);
        self.stream(Some(self.timeout), async move { stub.retrieve(request).await })
    }

    /// Retrieves everything in one response.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub async fn get_context(&self, request: RetrieveRequest) -> Result<GetContextResponse, Error> {
        let request = self.request(GetContextRequest { retrieve: Some(request) });
        self.call(self.memory().get_context(request)).await
    }

    /// Lets the server's language model answer from what it finds: clusters, memories, the context, pieces of the
    /// answer, done. Where nothing relevant is found there is no piece, and `done.end` is `NoEvidence`.
    pub fn answer(&self, request: AnswerRequest) -> Responses<AnswerResponse> {
        let mut stub = self.memory();
        let request = self.request(request);
        self.stream(Some(self.timeout), async move { stub.answer(request).await })
    }

    /// Watches a namespace: changes as they happen, over reconnects, none missed and none doubled.
    ///
    /// `start_after` of the request is `through` of a response seen before; unset begins now.
    pub fn watch(&self, request: WatchRequest) -> Responses<WatchResponse> {
        watch::responses(self.memory(), request, Outage::new(self.retry.clone()))
    }

    /// Stores one memory and waits until it is durable.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub async fn create_memory(
        &self,
        namespace: impl Into<String>,
        memory: impl Into<MemoryInput>,
    ) -> Result<CreateMemoryResponse, Error> {
        let request = CreateMemoryRequest {
            namespace: namespace.into(),
            memory: Some(memory.into()),
            ..CreateMemoryRequest::default()
        };
        self.call(self.memory().create_memory(self.request(request))).await
    }

    /// Reads one memory.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], `NOT_FOUND` among them.
    pub async fn get_memory(
        &self,
        namespace: impl Into<String>,
        memory_id: impl Into<String>,
    ) -> Result<Memory, Error> {
        let request = GetMemoryRequest {
            namespace: namespace.into(),
            memory_id: memory_id.into(),
            ..GetMemoryRequest::default()
        };
        let response = self.call(self.memory().get_memory(self.request(request))).await?;
        Ok(response.memory.unwrap_or_default())
    }

    /// Deletes one memory from everything.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], `NOT_FOUND` among them.
    pub async fn delete_memory(
        &self,
        namespace: impl Into<String>,
        memory_id: impl Into<String>,
    ) -> Result<DeleteMemoryResponse, Error> {
        let request = DeleteMemoryRequest {
            namespace: namespace.into(),
            memory_id: memory_id.into(),
            ..DeleteMemoryRequest::default()
        };
        self.call(self.memory().delete_memory(self.request(request))).await
    }

    /// Reads version, limits and models of the server.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub async fn server_info(&self) -> Result<GetServerInfoResponse, Error> {
        self.call(self.admin().get_server_info(self.request(GetServerInfoRequest {}))).await
    }
}
