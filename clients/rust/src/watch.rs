//! Watching a namespace, over reconnects.

use tonic::{Code, Streaming};

use crate::connect::Transport;
use crate::error::Error;
use crate::proto::memory_service_client::MemoryServiceClient;
use crate::proto::{WatchRequest, WatchResponse};
use crate::responses::{Feed, Responses};
use crate::retry::Outage;

/// Responses to a watch; a broken connection is opened again after the last of them.
pub(crate) fn responses(
    stub: MemoryServiceClient<Transport>,
    request: WatchRequest,
    outage: Outage,
) -> Responses<WatchResponse> {
    Responses::new(Watch { stub, request, outage, open: None, forward: false, ever: false })
}

struct Watch {
    stub: MemoryServiceClient<Transport>,
    request: WatchRequest,
    outage: Outage,
    open: Option<Streaming<WatchResponse>>,
    /// Whether the open call gave a response.
    forward: bool,
    /// Whether any call gave one; from then on a server that goes away is looked for.
    ever: bool,
}

impl Feed for Watch {
    type Item = WatchResponse;

    async fn next(&mut self) -> Result<Option<WatchResponse>, Error> {
        loop {
            match self.read().await {
                Ok(response) => {
                    if !self.forward {
                        self.outage.connected();
                    }
                    (self.forward, self.ever) = (true, true);
                    // Set before it is handed out: whoever stops here has seen it.
                    self.request.start_after.clone_from(&response.through);
                    return Ok(Some(response));
                }
                Err(error) if !self.ever && error.retry_after().is_none() => return Err(error), // it was never there
                Err(error) => {
                    let forward = std::mem::take(&mut self.forward);
                    self.open = None;
                    self.outage.wait(error, forward).await?;
                }
            }
        }
    }
}

impl Watch {
    async fn read(&mut self) -> Result<WatchResponse, Error> {
        if self.open.is_none() {
            self.open = Some(self.stub.watch(self.request.clone()).await?.into_inner());
        }
        let response = match &mut self.open {
            Some(responses) => responses.message().await?,
            None => None,
        };
        response.ok_or_else(|| Error::local(Code::Unavailable, "the server ended the watch"))
    }
}
