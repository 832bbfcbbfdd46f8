//! Client of CLAG, a memory sidecar for small-language-model agents.
//!
//! ```no_run
//! use clag_client::proto::RetrieveRequest;
//! use clag_client::proto::retrieve_response::Stage;
//! use clag_client::{Client, Error};
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect("unix:/run/user/1000/clag/clag.sock")?;
//!
//! let notes = tokio_stream::iter(["Dock B3 is blocked by a pallet", "The pallet at B3 was moved to B7"]);
//! let mut stream = client.ingest("warehouse", notes);
//! while let Some(outcome) = stream.try_next().await? {
//!     println!("{} {}", outcome.seq, outcome.memory_id);
//! }
//!
//! let request = RetrieveRequest { context_tokens: 256, ..RetrieveRequest::new("warehouse", "where is the pallet?") };
//! let mut stages = client.retrieve(request);
//! while let Some(response) = stages.try_next().await? {
//!     if let Some(Stage::Context(context)) = response.stage {
//!         println!("{}", context.text);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - [`Client`] connects, and has the calls; dropping what a call returns cancels it.
//! - [`Ingestion`] streams memories in, with credits, and resumes after a reconnect.
//! - [`Error`] is what every call fails with.
//! - [`proto`] has the generated messages and stubs of the whole contract.

mod client;
mod connect;
mod error;
mod failure;
mod ingestion;
mod item;
mod outcome;
mod responses;
mod retry;
mod target;
mod values;
mod watch;

pub use client::Client;
#[cfg(feature = "tls")]
pub use connect::Tls;
pub use connect::{Auth, ClientBuilder, Transport};
pub use error::{BoxError, CallFailure, Error, FieldViolation};
pub use ingestion::Ingestion;
pub use item::IntoItem;
pub use outcome::Outcome;
pub use responses::Responses;
pub use retry::RetryPolicy;
pub use tonic::Code;

/// Messages and stubs of the contract, generated from `clients/proto`; they carry its documentation.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, rustdoc::all)]
pub mod proto {
    include!("generated/clag.v1.rs");
}
