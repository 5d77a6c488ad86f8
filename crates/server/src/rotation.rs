//! Certificates over time: what there is at a moment, and what comes next. No clock and no I/O.
//!
//! A certificate is trusted before it is used: a new authority is published beside the old one first, signs when that
//! had time to reach every API server, and the old one stays published as long as anything that it signed may be in use.

use std::time::{Duration, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

/// How long certificates last. A certificate is replaced when a third of its time is left.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Of the authority.
    pub authority: Duration,
    /// Of the server's certificate.
    pub serving: Duration,
    /// From publishing a new authority until it signs: longer than an API server takes to learn of it.
    pub propagation: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            authority: Duration::from_secs(5 * 365 * DAY),
            serving: Duration::from_secs(90 * DAY),
            propagation: Duration::from_mins(10),
        }
    }
}

/// Clocks of replicas and API servers differ by less.
const SKEW: Duration = Duration::from_hours(1);

/// Seconds since 1970.
pub(crate) type Seconds = u64;

/// What all replicas share. Times are seconds since 1970, certificates and keys PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    /// Signs the server's certificate.
    signer: Authority,
    /// Published, and signs later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Next>,
    /// Signs no more, and is trusted until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retired: Option<Retired>,
    /// What the server shows.
    pub(crate) serving: Serving,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Authority {
    certificate: String,
    key: String,
    not_after: Seconds,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Next {
    authority: Authority,
    since: Seconds,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Retired {
    certificate: String,
    until: Seconds,
}

/// The server's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Serving {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) not_after: Seconds,
    names: Vec<String>,
}

impl State {
    /// The first one.
    pub(crate) fn new(now: Seconds, rotation: &Rotation, names: &[String]) -> Result<Self, rcgen::Error> {
        let signer = Authority::new(now, rotation)?;
        let serving = signer.sign(now, rotation, names)?;
        Ok(Self { signer, next: None, retired: None, serving })
    }

    /// What takes its place at this moment; nothing while all is well. `published` says that every webhook
    /// configuration carries [`State::bundle`].
    pub(crate) fn advance(
        &self,
        now: Seconds,
        rotation: &Rotation,
        names: &[String],
        published: bool,
    ) -> Result<Option<Self>, rcgen::Error> {
        if now >= self.signer.not_after {
            // Nobody trusts it any more, so there is nothing to be careful with.
            return Self::new(now, rotation, names).map(Some);
        }
        if self.serving.names != names || now >= renewal(self.serving.not_after, rotation.serving) {
            let serving = self.signer.sign(now, rotation, names)?;
            // The same seconds would make it due for ever.
            return Ok((serving.not_after > self.serving.not_after || serving.names != self.serving.names)
                .then(|| Self { serving, ..self.clone() }));
        }
        if let Some(retired) = &self.retired
            && now >= retired.until
        {
            return Ok(Some(Self { retired: None, ..self.clone() }));
        }
        match &self.next {
            None if now >= renewal(self.signer.not_after, rotation.authority) => {
                let next = Next { authority: Authority::new(now, rotation)?, since: now };
                Ok(Some(Self { next: Some(next), ..self.clone() }))
            }
            Some(next)
                if published
                    && self.retired.is_none()
                    && now >= next.since + rotation.propagation.as_secs() =>
            {
                let serving = next.authority.sign(now, rotation, names)?;
                let retired = Retired {
                    certificate: self.signer.certificate.clone(),
                    // Whoever did not hear of the change still shows what it signed.
                    until: self.serving.not_after,
                };
                Ok(Some(Self { signer: next.authority.clone(), next: None, retired: Some(retired), serving }))
            }
            _ => Ok(None),
        }
    }

    /// What webhook configurations have to trust, PEM.
    pub(crate) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.authority.certificate.as_str());
        let retired = self.retired.as_ref().map(|retired| retired.certificate.as_str());
        [Some(self.signer.certificate.as_str()), next, retired].into_iter().flatten().collect()
    }

    /// When to look again, at the latest.
    pub(crate) fn due(&self, rotation: &Rotation) -> Seconds {
        let serving = renewal(self.serving.not_after, rotation.serving);
        let authority = match &self.next {
            Some(next) => next.since + rotation.propagation.as_secs(),
            None => renewal(self.signer.not_after, rotation.authority),
        };
        let retired = self.retired.as_ref().map_or(Seconds::MAX, |retired| retired.until);
        serving.min(authority).min(retired)
    }
}

fn renewal(not_after: Seconds, validity: Duration) -> Seconds {
    not_after.saturating_sub(validity.as_secs() / 3)
}

impl Authority {
    fn new(now: Seconds, rotation: &Rotation) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let not_after = now + rotation.authority.as_secs();
        let params = Self::params(now, not_after)?;
        Ok(Self { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem(), not_after })
    }

    fn params(now: Seconds, not_after: Seconds) -> Result<CertificateParams, rcgen::Error> {
        let mut params = valid(CertificateParams::new(Vec::new())?, now, not_after);
        params.distinguished_name.push(DnType::CommonName, "cozy-gitops webhook");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(params)
    }

    fn sign(&self, now: Seconds, rotation: &Rotation, names: &[String]) -> Result<Serving, rcgen::Error> {
        // Of the authority, signing needs its name and key, which are the same each time.
        let issuer = Issuer::new(Self::params(now, self.not_after)?, KeyPair::from_pem(&self.key)?);
        let not_after = (now + rotation.serving.as_secs()).min(self.not_after);
        let mut params = valid(CertificateParams::new(names)?, now, not_after);
        params.distinguished_name.push(DnType::CommonName, "cozy-gitops");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Serving {
            certificate: params.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
            not_after,
            names: names.to_vec(),
        })
    }
}

fn valid(mut params: CertificateParams, now: Seconds, not_after: Seconds) -> CertificateParams {
    params.not_before = (UNIX_EPOCH + Duration::from_secs(now).saturating_sub(SKEW)).into();
    params.not_after = (UNIX_EPOCH + Duration::from_secs(not_after)).into();
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Seconds = 1_700_000_000;

    fn rotation() -> Rotation {
        Rotation {
            authority: Duration::from_secs(30_000),
            serving: Duration::from_secs(3_000),
            propagation: Duration::from_secs(100),
        }
    }

    fn names() -> Vec<String> {
        vec!["a.b.svc".to_owned()]
    }

    fn step(state: &State, now: Seconds, published: bool) -> Option<State> {
        state.advance(now, &rotation(), &names(), published).unwrap()
    }

    /// Whether somebody who trusts the bundle accepts what is shown.
    fn trusted(bundle: &str, serving: &Serving, now: Seconds) -> bool {
        use rustls::client::WebPkiServerVerifier;
        use rustls::client::danger::ServerCertVerifier as _;
        use rustls::pki_types::pem::PemObject as _;
        use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = rustls::crypto::ring::default_provider().into();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(std::sync::Arc::new(roots), provider).build();
        let shown = CertificateDer::from_pem_slice(serving.certificate.as_bytes()).unwrap();
        let name = ServerName::try_from("a.b.svc").unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        verifier.unwrap().verify_server_cert(&shown, &[], &name, &[], now).is_ok()
    }

    #[test]
    fn nothing_happens_before_its_time() {
        let state = State::new(START, &rotation(), &names()).unwrap();
        assert!(trusted(&state.bundle(), &state.serving, START));
        assert_eq!(step(&state, START, true), None);
        assert_eq!(step(&state, START + 1_999, true), None);
        assert_eq!(state.due(&rotation()), START + 2_000);
    }

    #[test]
    fn a_certificate_is_renewed_by_the_same_authority() {
        let state = State::new(START, &rotation(), &names()).unwrap();
        let renewed = step(&state, START + 2_000, true).unwrap();
        assert_ne!(renewed.serving, state.serving);
        assert_eq!(renewed.bundle(), state.bundle());
        assert!(trusted(&state.bundle(), &renewed.serving, START + 2_000));
    }

    #[test]
    fn other_names_need_another_certificate() {
        let state = State::new(START, &rotation(), &names()).unwrap();
        let other = vec!["other.svc".to_owned()];
        let changed = state.advance(START, &rotation(), &other, true).unwrap().unwrap();
        assert_eq!(changed.serving.names, other);
    }

    /// Over years: at each moment, what any replica shows is trusted by any API server, however far behind the last
    /// change each of them is.
    #[test]
    fn what_is_shown_is_always_trusted() {
        let mut now = START;
        let mut states = vec![State::new(now, &rotation(), &names()).unwrap()];
        let mut authorities = std::collections::BTreeSet::new();
        while now < START + 200_000 {
            let last = states.last().unwrap().clone();
            authorities.insert(last.signer.certificate.clone());
            match step(&last, now, true) {
                Some(next) => {
                    // One of them has heard of it and the other has not.
                    for (a, b) in [(&last, &next), (&next, &last)] {
                        assert!(trusted(&a.bundle(), &b.serving, now), "at {}", now - START);
                    }
                    states.push(next);
                }
                None => {
                    assert!(last.due(&rotation()) > now, "due, and nothing done");
                    now = last.due(&rotation());
                }
            }
        }
        assert!(authorities.len() > 5, "{}", authorities.len());
    }

    #[test]
    fn an_authority_that_is_not_published_does_not_sign() {
        let mut state = State::new(START, &rotation(), &names()).unwrap();
        let mut now = START;
        while state.next.is_none() {
            now = state.due(&rotation());
            state = step(&state, now, true).unwrap();
        }
        let later = now + 101;
        assert!(step(&state, later, false).is_none_or(|next| next.signer == state.signer));
        assert_ne!(step(&state, later, true).unwrap().signer, state.signer);
    }

    #[test]
    fn after_everything_ran_out_there_is_a_new_beginning() {
        let state = State::new(START, &rotation(), &names()).unwrap();
        let now = START + 1_000_000;
        let next = step(&state, now, false).unwrap();
        assert!(trusted(&next.bundle(), &next.serving, now));
    }

    #[test]
    fn survives_being_written_down() {
        let state = State::new(START, &rotation(), &names()).unwrap();
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    }
}
