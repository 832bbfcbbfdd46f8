//! What `ingest` takes.

use crate::error::BoxError;
use crate::proto::MemoryInput;

/// An item of an ingestion: a [`MemoryInput`], a text, or a result of one where reading the source can fail.
pub trait IntoItem {
    /// Makes the message.
    ///
    /// # Errors
    ///
    /// What the source failed with; it ends the ingestion after the items before it are stored.
    fn into_item(self) -> Result<MemoryInput, BoxError>;
}

impl IntoItem for MemoryInput {
    fn into_item(self) -> Result<MemoryInput, BoxError> {
        Ok(self)
    }
}

impl IntoItem for &str {
    fn into_item(self) -> Result<MemoryInput, BoxError> {
        Ok(self.into())
    }
}

impl IntoItem for String {
    fn into_item(self) -> Result<MemoryInput, BoxError> {
        Ok(self.into())
    }
}

impl<T: IntoItem, E: Into<BoxError>> IntoItem for Result<T, E> {
    fn into_item(self) -> Result<MemoryInput, BoxError> {
        self.map_err(Into::into)?.into_item()
    }
}
