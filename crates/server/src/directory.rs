//! Certificates that somebody else puts into a directory.

use std::path::Path;
use std::time::Duration;

use tracing::{info, warn};

use crate::listen::Published;

/// The kubelet itself takes up to a minute to bring a changed Secret.
const LOOK: Duration = Duration::from_secs(10);

/// Shows `tls.crt` and `tls.key`, and again whenever they change. What cannot be read leaves the last good ones.
pub(crate) async fn run(directory: &Path, published: &Published) {
    let mut shown: Option<(String, String)> = None;
    let mut told: Option<String> = None;
    loop {
        let outcome = match read(directory).await {
            Ok(files) if shown.as_ref() == Some(&files) => Ok(false),
            Ok(files) => published.show(&files.0, &files.1, 0).map(|()| {
                shown = Some(files);
                true
            }),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(true) => {
                told = None;
                info!(directory = %directory.display(), "a certificate was read");
            }
            Ok(false) => {}
            Err(error) => {
                if told.as_ref() != Some(&error) {
                    warn!(directory = %directory.display(), "{error}; looking again every {} s", LOOK.as_secs());
                    told = Some(error);
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn read(directory: &Path) -> Result<(String, String), String> {
    let file = async |name: &str| {
        let path = directory.join(name);
        tokio::fs::read_to_string(&path).await.map_err(|error| format!("{}: {error}", path.display()))
    };
    Ok((file("tls.crt").await?, file("tls.key").await?))
}
