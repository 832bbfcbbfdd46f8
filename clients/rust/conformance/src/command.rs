//! Commands, as they are read.

use serde::Deserialize;
use serde_json::Value;

/// One line of input; which fields there are depends on `op`.
#[derive(Debug, Deserialize)]
pub(crate) struct Command {
    pub(crate) id: u64,
    pub(crate) op: String,
    #[serde(default = "first")]
    pub(crate) name: String,
    /// An address of `connect`; the id of another command elsewhere.
    #[serde(default)]
    pub(crate) target: Value,
    #[serde(default)]
    pub(crate) token: String,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) timeout_ms: Option<u64>,
    #[serde(default)]
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) request: String,
    #[serde(default)]
    pub(crate) requests: Vec<String>,
    pub(crate) half_close: Option<bool>,
    #[serde(default, rename = "type")]
    pub(crate) type_name: String,
    #[serde(default)]
    pub(crate) data: String,
    #[serde(default)]
    pub(crate) value: String,
    #[serde(default)]
    pub(crate) namespace: String,
    #[serde(default)]
    pub(crate) stream_id: String,
    pub(crate) ack_level: Option<String>,
    #[serde(default)]
    pub(crate) items: Vec<String>,
    pub(crate) generate: Option<Generate>,
    pub(crate) pause_after: Option<u64>,
    pub(crate) consume: Option<String>,
    #[serde(default)]
    pub(crate) quiet: bool,
    pub(crate) limit: Option<u64>,
}

/// Certificates and a key, in PEM.
#[derive(Debug, Deserialize)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<String>,
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
}

/// Items to make; `{n}` in a text or id is the item's number, from 1.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Generate {
    pub(crate) count: u64,
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) memory_id: String,
    #[serde(default)]
    pub(crate) session_id: String,
}

fn first() -> String {
    "a".to_owned()
}
