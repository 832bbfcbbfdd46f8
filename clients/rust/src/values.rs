//! Short ways to the messages that a client sends most.

use crate::proto::attribute_value::Value;
use crate::proto::{
    AnswerRequest, AttributeValue, IngestOpen, MemoryInput, Query, RetrieveRequest, StringList, WatchRequest,
};

impl From<&str> for MemoryInput {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for MemoryInput {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl From<&str> for Query {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Query {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl From<Vec<f32>> for Query {
    fn from(embedding: Vec<f32>) -> Self {
        Self { embedding, ..Self::default() }
    }
}

impl From<&str> for AttributeValue {
    fn from(value: &str) -> Self {
        Self { value: Some(Value::StringValue(value.to_owned())) }
    }
}

impl From<i64> for AttributeValue {
    fn from(value: i64) -> Self {
        Self { value: Some(Value::IntValue(value)) }
    }
}

impl From<f64> for AttributeValue {
    fn from(value: f64) -> Self {
        Self { value: Some(Value::DoubleValue(value)) }
    }
}

impl From<bool> for AttributeValue {
    fn from(value: bool) -> Self {
        Self { value: Some(Value::BoolValue(value)) }
    }
}

impl From<Vec<String>> for AttributeValue {
    fn from(values: Vec<String>) -> Self {
        Self { value: Some(Value::StringList(StringList { values })) }
    }
}

impl IngestOpen {
    /// A stream of a name, which the same name resumes in another process.
    pub fn new(namespace: impl Into<String>, stream_id: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), stream_id: stream_id.into(), ..Self::default() }
    }
}

impl From<&str> for IngestOpen {
    fn from(namespace: &str) -> Self {
        Self::new(namespace, "")
    }
}

impl From<String> for IngestOpen {
    fn from(namespace: String) -> Self {
        Self::new(namespace, "")
    }
}

impl RetrieveRequest {
    /// A retrieval with the server's defaults; the query is a text or an embedding of the namespace's dimension.
    pub fn new(namespace: impl Into<String>, query: impl Into<Query>) -> Self {
        Self { namespace: namespace.into(), query: Some(query.into()), ..Self::default() }
    }
}

impl AnswerRequest {
    /// A question with the server's defaults.
    pub fn new(namespace: impl Into<String>, question: impl Into<String>) -> Self {
        let retrieve = RetrieveRequest::new(namespace, question.into());
        Self { retrieve: Some(retrieve), ..Self::default() }
    }
}

impl WatchRequest {
    /// A watch of all changes from now on.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), ..Self::default() }
    }
}
