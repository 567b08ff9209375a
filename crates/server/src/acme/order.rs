//! One order at the CA, from the account to the certificate.

use std::{error::Error, io, path::Path, time::Duration};

use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder,
    Order, OrderStatus, RetryPolicy,
};

use tokio::time;

use super::{Issued, off_runtime, resolver::Proofs, store::Store};
use crate::config::AcmeConfig;

/// How long it may take until the CA is asked to sign, and from then on, whatever it does.
const STAGE_TIMEOUT: Duration = Duration::from_secs(150);

/// How long the CA may take to look at the proofs, and then to sign.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(90));

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("{}", explained(.0))]
    Ca(#[from] instant_acme::Error),
    #[error(
        "the CA does not find this server at {name} ({reason}). The name's DNS entries, A and AAAA, must be the address of this \
         server, and TCP port 443 there must be open to everyone and lead to --listen"
    )]
    NotFound { name: String, reason: String },
    #[error("the CA has no TLS-ALPN-01 for {0}, the only proof that this server can give")]
    NoChallenge(String),
    #[error("the order failed, and the CA does not say why")]
    Failed,
    #[error("the CA takes too long")]
    Late,
    #[error("the CA's certificate cannot be used: {0}")]
    Unusable(io::Error),
    #[error(
        "{0}. The CA may have issued a certificate nevertheless, and it issues few a week for the same names"
    )]
    Lost(Box<OrderError>),
    #[error("the account cannot be kept: {0}")]
    Store(#[from] io::Error),
    #[error(transparent)]
    Proof(#[from] rcgen::Error),
}

/// Orders a certificate. What the CA looks for meanwhile is among the proofs.
pub(super) async fn order(
    config: &AcmeConfig,
    store: &Store,
    proofs: &Proofs,
) -> Result<Issued, OrderError> {
    let proven = time::timeout(STAGE_TIMEOUT, prove(config, store, proofs));
    let mut order = proven.await.unwrap_or(Err(OrderError::Late))?;
    let issued = time::timeout(STAGE_TIMEOUT, issue(&mut order)).await;
    let error = match issued.unwrap_or(Err(OrderError::Late)) {
        Ok(issued) => return Ok(issued),
        Err(error) => error,
    };
    match (&error, order.state().status) {
        // It has not even begun to sign, or has given up.
        (OrderError::Ca(instant_acme::Error::Api(_)), OrderStatus::Ready)
        | (_, OrderStatus::Invalid) => Err(error),
        _ => Err(OrderError::Lost(error.into())),
    }
}

/// From the account to an order that the CA is ready to sign.
async fn prove(config: &AcmeConfig, store: &Store, proofs: &Proofs) -> Result<Order, OrderError> {
    let names = config.domains.iter().cloned().map(Identifier::Dns);
    let names: Vec<_> = names.collect();
    let new = NewOrder::new(&names);
    let mut order = match account(config, store).await?.new_order(&new).await {
        Err(error) if is_unknown_account(&error) => {
            // The CA was set up anew.
            store.forget_account().await?;
            account(config, store).await?.new_order(&new).await?
        }
        order => order?,
    };
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let name = authorization.identifier().to_string();
        let Some(mut challenge) = authorization.challenge(ChallengeType::TlsAlpn01) else {
            return Err(OrderError::NoChallenge(name));
        };
        proofs.show(&name, challenge.key_authorization().digest().as_ref())?;
        challenge.set_ready().await?;
    }
    let ready = order.poll_ready(&PATIENCE).await;
    if !matches!(ready, Ok(OrderStatus::Ready)) {
        let reason = match not_found(&mut order).await {
            Some(reason) => reason,
            None => ready.err().map_or(OrderError::Failed, OrderError::Ca),
        };
        return Err(reason);
    }
    Ok(order)
}

/// Has the CA sign.
async fn issue(order: &mut Order) -> Result<Issued, OrderError> {
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&PATIENCE).await?;
    Issued::parse(key + &chain).map_err(OrderError::Unusable)
}

/// How the CA is reached. Blocks: it reads the root certificate, or those of the system.
///
/// # Errors
/// The root certificate is none.
pub(super) fn client(root_ca: Option<&Path>) -> Result<AccountBuilder, instant_acme::Error> {
    match root_ca {
        Some(root) => Account::builder_with_root(root),
        None => Account::builder(),
    }
}

/// The one that was kept, or a new one.
async fn account(config: &AcmeConfig, store: &Store) -> Result<Account, OrderError> {
    let root_ca = config.root_ca.clone();
    let client = off_runtime(move || client(root_ca.as_deref())).await?;
    if let Some(kept) = store.account().await? {
        return Ok(client.from_credentials(kept).await?);
    }
    let contact: Vec<_> = config.contacts.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        // `antiphon serve --help` says so.
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = client.create(&new, config.directory.clone(), None).await?;
    store.keep_account(&credentials).await?;
    Ok(account)
}

fn is_unknown_account(error: &instant_acme::Error) -> bool {
    let instant_acme::Error::Api(problem) = error else {
        return false;
    };
    problem.r#type.as_deref() == Some("urn:ietf:params:acme:error:accountDoesNotExist")
}

/// The first name at which the CA found no proof.
async fn not_found(order: &mut Order) -> Option<OrderError> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let state = authorization.refresh().await.ok()?;
        let problem = state
            .challenges
            .iter()
            .find_map(|challenge| challenge.error.as_ref());
        if let Some(problem) = problem {
            return Some(OrderError::NotFound {
                name: state.identifier().to_string(),
                reason: problem.to_string(),
            });
        }
    }
    None
}

/// What the CA says, or why it says nothing.
fn explained(error: &instant_acme::Error) -> String {
    if let instant_acme::Error::Api(problem) = error {
        return format!("the CA refuses ({problem})");
    }
    let mut text = format!("the CA does not answer as it should ({error}");
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text + ")"
}
