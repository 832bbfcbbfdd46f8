//! Addresses of servers.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use tonic::transport::Uri;

use crate::error::Error;

/// Where a server listens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Unix(PathBuf),
    Tcp { authority: String, host: String },
}

impl Target {
    /// Whether what is sent there stays on this machine: a Unix socket, "localhost" or a loopback address.
    ///
    /// Other names count as elsewhere, wherever they lead now: who answers for a name can change.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
            }
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Unix(_) => "localhost",
            Self::Tcp { host, .. } => host,
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(target: &str) -> Result<Self, Error> {
        let path = target.strip_prefix("unix://").or_else(|| target.strip_prefix("unix:"));
        if let Some(path) = path.or_else(|| target.starts_with('/').then_some(target)) {
            return if path.is_empty() { Err(not_an_address(target)) } else { Ok(Self::Unix(path.into())) };
        }
        let uri: Uri = format!("http://{target}").parse().map_err(|_| not_an_address(target))?;
        let bare = uri.path_and_query().is_none_or(|rest| rest.as_str() == "/") && !target.ends_with('/');
        match (uri.authority(), uri.host()) {
            // What stands before an @ is no host, however local it looks.
            (Some(authority), Some(host)) if bare && uri.port().is_some() && !target.contains('@') => {
                Ok(Self::Tcp {
                    authority: authority.as_str().to_owned(),
                    host: host.trim_matches(['[', ']']).to_owned(),
                })
            }
            _ => Err(not_an_address(target)),
        }
    }
}

fn not_an_address(target: &str) -> Error {
    Error::Options(format!("{target:?} is no address of a server: give unix:PATH, /PATH or HOST:PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().expect("an address")
    }

    #[test]
    fn a_unix_socket_is_named_by_prefix_or_absolute_path() {
        for text in ["unix:/run/clag.sock", "unix:///run/clag.sock", "/run/clag.sock"] {
            assert_eq!(target(text), Target::Unix("/run/clag.sock".into()));
        }
        assert_eq!(target("unix:clag.sock"), Target::Unix("clag.sock".into()));
    }

    #[test]
    fn only_loopback_addresses_and_sockets_are_local() {
        for local in ["/s", "localhost:7077", "LOCALHOST:7077", "127.0.0.1:1", "127.8.9.1:1", "[::1]:7077"] {
            assert!(target(local).is_local(), "{local}");
        }
        for far in ["example.org:7077", "10.0.0.1:7077", "[2001:db8::1]:7077", "localhost.example.org:1"] {
            assert!(!target(far).is_local(), "{far}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for wrong in ["", "unix:", "example.org", "localhost@example.org:1", "a:1/path", "a:1/", "a:1?q=1", "a b:1"]
        {
            assert!(matches!(Target::from_str(wrong), Err(Error::Options(_))), "{wrong}");
        }
    }
}
