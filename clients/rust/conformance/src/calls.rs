//! Calls of the generated stubs and round trips of the generated messages, by name.

use std::sync::Arc;
use std::time::Duration;

use clag_client::proto;
use clag_client::{Client, Responses};
use prost::Message;
use serde_json::{Value, json};
use tokio_stream::StreamExt;
use tonic::Request;

use crate::command::Command;
use crate::generated::{for_each_message, for_each_method};
use crate::reply::{Failure, decoded, encoded};
use crate::work::Work;

macro_rules! roundtrip_by_name {
    ($($path:literal $message:ident;)*) => {
        /// Decodes and encodes by the generated message.
        pub(crate) fn roundtrip(command: &Command) -> Result<String, Failure> {
            match command.type_name.as_str() {
                $($path => Ok(encoded(&decoded::<proto::$message>(&command.data)?)),)*
                other => Err(Failure::invalid(format!("no such message: {other}"))),
            }
        }
    };
}
for_each_message!(roundtrip_by_name);

macro_rules! call_by_name {
    ($($kind:ident $path:literal $stub:ident $method:ident $request:ident;)*) => {
        /// Calls a method of a generated stub.
        pub(crate) async fn call(client: &Client, work: &Arc<Work>) -> Result<Value, Failure> {
            let command = &work.command;
            match command.method.as_str() {
                $($path => $kind!(client, work, $stub, $method, $request),)*
                other => Err(Failure::invalid(format!("no such method: {other}"))),
            }
        }
    };
}

macro_rules! unary {
    ($client:ident, $work:ident, $stub:ident, $method:ident, $request:ident) => {{
        let request = $client.request(decoded::<proto::$request>(&$work.command.request)?);
        let response = $client.call($client.$stub().$method(request)).await?;
        Ok(json!({"response": encoded(&response)}))
    }};
}

macro_rules! stream {
    ($client:ident, $work:ident, $stub:ident, $method:ident, $request:ident) => {{
        let request = timed(decoded::<proto::$request>(&$work.command.request)?, deadline(&$work.command));
        let mut stub = $client.$stub();
        let call = async move { stub.$method(request).await };
        pass_on($client.stream(deadline(&$work.command), call), $work).await
    }};
}

macro_rules! duplex {
    ($client:ident, $work:ident, $stub:ident, $method:ident, $request:ident) => {{
        let requests = $work.command.requests.iter().map(|one| decoded::<proto::$request>(one));
        let requests = tokio_stream::iter(requests.collect::<Result<Vec<_>, _>>()?);
        // A stream that never ends after the last request leaves the client's side open.
        let open = tokio_stream::pending().take(usize::from($work.command.half_close == Some(false)));
        let request = timed(requests.chain(open), deadline(&$work.command));
        let mut stub = $client.$stub();
        let call = async move { stub.$method(request).await };
        pass_on($client.stream(deadline(&$work.command), call), $work).await
    }};
}
for_each_method!(call_by_name);

async fn pass_on<T: Message + 'static>(mut responses: Responses<T>, work: &Work) -> Result<Value, Failure> {
    while let Some(response) = responses.try_next().await? {
        work.event(&json!({"response": encoded(&response)}));
    }
    Ok(json!({}))
}

fn deadline(command: &Command) -> Option<Duration> {
    command.timeout_ms.map(Duration::from_millis)
}

fn timed<T>(message: T, timeout: Option<Duration>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    request
}
