//! How to reach a server: a Unix socket or TCP, a bearer token, TLS.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
#[cfg(feature = "tls")]
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};

use crate::client::Client;
use crate::error::Error;
use crate::retry::RetryPolicy;
use crate::target::Target;

/// The connection that all stubs of a [`Client`] share: a channel that connects when it is used, and the token.
pub type Transport = InterceptedService<Channel, Auth>;

/// Deadline of calls that are given none; the server cuts longer ones to its own maximum.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// An address that swallows packets must count as a failed attempt, so that a stream's budget can end.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds the bearer token to every call.
#[derive(Clone)]
pub struct Auth(Option<MetadataValue<Ascii>>);

impl Interceptor for Auth {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Auth").field(&self.0.as_ref().map(|_| "…")).finish()
    }
}

/// Keys and certificates, in PEM. Without a root certificate the system's are trusted.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
#[must_use]
pub struct Tls {
    roots: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

#[cfg(feature = "tls")]
impl Tls {
    /// TLS with the certificates that the system trusts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these certificates in place of the system's.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Our own certificate and its key, where the server asks for them.
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// The name to expect in the server's certificate in place of the host's.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    fn config(&self, host: &str) -> ClientTlsConfig {
        let mut config = match &self.roots {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_enabled_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        config.domain_name(self.server_name.as_deref().unwrap_or(host))
    }
}

#[cfg(feature = "tls")]
impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// Options of a connection; begins at [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    target: String,
    token: String,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    timeout: Duration,
    retry: RetryPolicy,
    keepalive: Option<Duration>,
}

impl ClientBuilder {
    pub(crate) fn new(target: String) -> Self {
        Self {
            target,
            token: String::new(),
            #[cfg(feature = "tls")]
            tls: None,
            timeout: DEFAULT_TIMEOUT,
            retry: RetryPolicy::default(),
            keepalive: None,
        }
    }

    /// The bearer token that TCP servers ask for. An empty one is none.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// Speaks TLS. Without it the connection is plain text, for Unix sockets and loopback addresses.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Deadline of unary calls, retrievals and answers; 30 s where none is given.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How broken streams are resumed.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Time between pings while a call is open, so that a network that swallows packets is noticed; none by default.
    pub fn keepalive(mut self, interval: Duration) -> Self {
        self.keepalive = Some(interval);
        self
    }

    /// Makes the client. Nothing is sent yet: it connects at the first call, and again after a connection broke.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the target cannot be understood, a token would cross a network in plain text,
    /// certificates cannot be read, or there is no tokio runtime here.
    pub fn connect(self) -> Result<Client, Error> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::Options("a client is made inside of a tokio runtime".into()));
        }
        let target = Target::from_str(&self.target)?;
        let auth = self.auth(&target)?;
        let endpoint = self.endpoint(&target)?;
        let channel = match target {
            Target::Unix(path) => over_unix_socket(&endpoint, path)?,
            Target::Tcp { .. } => endpoint.connect_lazy(),
        };
        Ok(Client::new(InterceptedService::new(channel, auth), self.timeout, self.retry))
    }

    fn secure(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    fn auth(&self, target: &Target) -> Result<Auth, Error> {
        if self.token.is_empty() {
            return Ok(Auth(None));
        }
        if !self.secure() && !target.is_local() {
            let target = &self.target;
            let sentence = format!("a token is not sent to {target} in plain text: use TLS, or a loopback address");
            return Err(Error::Options(sentence));
        }
        let mut value = MetadataValue::from_str(&format!("Bearer {}", self.token))
            .map_err(|_| Error::Options("the token has characters that a header cannot carry".into()))?;
        value.set_sensitive(true);
        Ok(Auth(Some(value)))
    }

    fn endpoint(&self, target: &Target) -> Result<Endpoint, Error> {
        let scheme = if self.secure() { "https" } else { "http" };
        let authority = match target {
            Target::Unix(_) => "localhost",
            Target::Tcp { authority, .. } => authority,
        };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{authority}"))
            .and_then(|endpoint| endpoint.user_agent(concat!("clag-rust/", env!("CARGO_PKG_VERSION"))))
            .map_err(|error| refused(&error))?
            .connect_timeout(CONNECT_TIMEOUT);
        if let Some(interval) = self.keepalive {
            endpoint = endpoint.http2_keep_alive_interval(interval);
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            endpoint = endpoint.tls_config(tls.config(target.host())).map_err(|error| refused(&error))?;
        }
        Ok(endpoint)
    }
}

fn refused(error: &tonic::transport::Error) -> Error {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    Error::Options(format!("{error}{cause}"))
}

#[cfg(unix)]
#[allow(clippy::unnecessary_wraps)] // it fails where there are no Unix sockets
fn over_unix_socket(endpoint: &Endpoint, path: PathBuf) -> Result<Channel, Error> {
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

#[cfg(not(unix))]
fn over_unix_socket(_: &Endpoint, path: PathBuf) -> Result<Channel, Error> {
    Err(Error::Options(format!("{} is a Unix socket, which this system has none of", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_never_sent_over_a_network_in_plain_text() {
        let builder = ClientBuilder::new("example.org:7077".into()).token("secret");
        let error = builder.clone().connect().expect_err("refused");
        assert!(matches!(error, Error::Options(_)));
        assert!(!error.to_string().contains("secret"));
        #[cfg(feature = "tls")]
        builder.tls(Tls::new()).connect().expect("with TLS it is");
        ClientBuilder::new("localhost:7077".into())
            .token("secret")
            .connect()
            .expect("it does not leave the machine");
    }

    #[test]
    fn a_client_needs_a_runtime_and_says_so() {
        assert!(matches!(ClientBuilder::new("/s".into()).connect(), Err(Error::Options(_))));
    }

    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn nothing_secret_is_shown_by_debug() {
        let tls = Tls::new().identity("certificate", "secret key");
        assert!(!format!("{tls:?}").contains("secret"));
        let client = ClientBuilder::new("localhost:1".into()).token("secret").connect().expect("options are right");
        assert!(!format!("{client:?}").contains("secret"));
    }
}
