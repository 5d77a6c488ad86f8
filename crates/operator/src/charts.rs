//! Charts' default values and schemas, read from ExternalArtifacts.
//!
//! source-watcher serves them over plain HTTP inside the cluster, so the digest is what makes them trustworthy.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use cozy_core::chart::{Chart, coalesce};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Largest archive that is downloaded.
const MAX_ARCHIVE: usize = 32 * 1024 * 1024;
/// Most bytes that an archive may unpack to.
const MAX_UNPACKED: u64 = 256 * 1024 * 1024;
/// Largest `values.yaml` or `values.schema.json`.
const MAX_FILE: u64 = 4 * 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a chart is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChartError {
    #[error("{url} is no http:// address")]
    Address { url: String },
    #[error("{url}: {reason}")]
    Download { url: String, reason: String },
    #[error("{url} does not have the digest {digest}: it was changed on the way, or replaced meanwhile")]
    Digest { url: String, digest: String },
    #[error("the archive cannot be read: {0}")]
    Archive(String),
}

impl ChartError {
    /// Whether trying again is pointless before the artifact changes.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Address { .. } | Self::Archive(_))
    }
}

/// Downloads an artifact, checks its digest and reads the chart in it.
pub(crate) async fn fetch(url: &str, digest: &str) -> Result<Chart, ChartError> {
    let address: http::Uri = url.parse().map_err(|_| ChartError::Address { url: url.to_owned() })?;
    if address.scheme_str() != Some("http") {
        return Err(ChartError::Address { url: url.to_owned() });
    }
    let failed = |reason: String| ChartError::Download { url: url.to_owned(), reason };
    let client: Client<HttpConnector, Empty<hyper::body::Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let download = async {
        let response = client.get(address).await.map_err(|error| failed(error.to_string()))?;
        if !response.status().is_success() {
            return Err(failed(format!("answered {}", response.status())));
        }
        let body = Limited::new(response.into_body(), MAX_ARCHIVE).collect().await;
        Ok(body.map_err(|error| failed(error.to_string()))?.to_bytes())
    };
    let bytes =
        tokio::time::timeout(TIMEOUT, download).await.map_err(|_| failed("took too long".to_owned()))??;
    let (url, digest) = (url.to_owned(), digest.to_owned());
    tokio::task::spawn_blocking(move || {
        if !has_digest(&bytes, &digest) {
            return Err(ChartError::Digest { url, digest });
        }
        read_archive(&bytes)
    })
    .await
    .map_err(|error| ChartError::Archive(error.to_string()))?
}

fn has_digest(bytes: &[u8], digest: &str) -> bool {
    let Some(wanted) = digest.strip_prefix("sha256:") else { return false };
    let found: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    found.eq_ignore_ascii_case(wanted)
}

/// Reads `<chart>/values.yaml`, `<chart>/values.schema.json` and the `values.yaml` of its subcharts.
fn read_archive(bytes: &[u8]) -> Result<Chart, ChartError> {
    let failed = |error: &dyn std::fmt::Display| ChartError::Archive(error.to_string());
    let unpacked = flate2::read::GzDecoder::new(bytes).take(MAX_UNPACKED);
    let mut archive = tar::Archive::new(unpacked);
    let mut values = Value::Object(Map::new());
    let mut schema = None;
    let mut subcharts: BTreeMap<String, Value> = BTreeMap::new();
    for entry in archive.entries().map_err(|error| failed(&error))? {
        let entry = entry.map_err(|error| failed(&error))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().map_err(|error| failed(&error))?.into_owned();
        let parts: Vec<String> = path
            .components()
            .filter_map(|part| match part {
                std::path::Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
                _ => None,
            })
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let target = match parts.as_slice() {
            [_, "values.yaml"] | [_, "values.schema.json"] => None,
            [_, "charts", subchart, "values.yaml"] => Some((*subchart).to_owned()),
            _ => continue,
        };
        if entry.size() > MAX_FILE {
            return Err(failed(&format!("{} is larger than 4 MiB", path.display())));
        }
        let mut text = Vec::new();
        entry.take(MAX_FILE).read_to_end(&mut text).map_err(|error| failed(&error))?;
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let read = cozy_yaml::parse_one(&text, &cozy_yaml::Limits::default());
        let read = read.map_err(|error| failed(&format!("{}: {error}", path.display())))?.value;
        match target {
            Some(subchart) => drop(subcharts.insert(subchart, read)),
            None if path.extension().is_some_and(|extension| extension == "json") => schema = Some(read),
            None if read.is_object() => values = read,
            None => {}
        }
    }
    let mut all = Value::Object(subcharts.into_iter().collect());
    coalesce(&mut all, &values);
    Ok(Chart { values: all, schema })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        for (path, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        let mut encoder = builder.into_inner().unwrap();
        encoder.flush().unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn reads_defaults_of_a_chart_and_its_subcharts() {
        let bytes = archive(&[
            ("m/Chart.yaml", "name: m"),
            ("m/values.yaml", "images: [{name: a}]\nsub: {x: 2}"),
            ("m/values.schema.json", "{\"type\": \"object\"}"),
            ("m/charts/sub/values.yaml", "x: 1\nz: 3"),
            ("m/charts/sub/templates/values.yaml", "no: 1"),
        ]);
        let chart = read_archive(&bytes).unwrap();
        assert_eq!(
            chart.values,
            serde_json::json!({ "images": [{ "name": "a" }], "sub": { "x": 2, "z": 3 } })
        );
        assert_eq!(chart.schema, Some(serde_json::json!({ "type": "object" })));
    }

    #[test]
    fn a_changed_archive_is_told_by_its_digest() {
        let digest =
            format!("sha256:{}", Sha256::digest(b"x").iter().map(|b| format!("{b:02x}")).collect::<String>());
        assert!(has_digest(b"x", &digest));
        assert!(!has_digest(b"y", &digest));
        assert!(!has_digest(b"x", "md5:00"));
    }
}
