//! What outlives the server: the account at the CA, and the newest certificate with its key. Readable by the server's own user only.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use instant_acme::AccountCredentials;
use ring::digest::{Context, SHA256};

use super::off_runtime;
use crate::config::AcmeConfig;

/// Two files. Their names tell CAs, contacts and sets of names apart, so that a server with other settings uses other files.
#[derive(Debug)]
pub(super) struct Store {
    account: PathBuf,
    certificate: PathBuf,
}

impl Store {
    /// Makes the directory if it is not there.
    ///
    /// # Errors
    /// Nothing can be written there: better known now than when the CA has issued a certificate.
    pub(super) fn open(config: &AcmeConfig) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&config.cache)?;
        let path = |kind: &str, of: &[String], ending: &str| {
            let id = id(&config.directory, of);
            config.cache.join(format!("{kind}-{id}.{ending}"))
        };
        let store = Self {
            account: path("account", &config.contacts, "json"),
            certificate: path("certificate", &config.domains, "pem"),
        };
        drop(create(&temporary(&store.certificate))?);
        fs::remove_file(temporary(&store.certificate))?;
        Ok(store)
    }

    /// The key, then the chain; none if none was kept. Blocks.
    pub(super) fn certificate(&self) -> io::Result<Option<String>> {
        read(&self.certificate)
    }

    pub(super) async fn keep_certificate(&self, pem: String) -> io::Result<()> {
        let file = self.certificate.clone();
        off_runtime(move || replace(&file, pem.as_bytes())).await
    }

    /// None if none was kept.
    pub(super) async fn account(&self) -> io::Result<Option<AccountCredentials>> {
        let file = self.account.clone();
        let text = off_runtime(move || read(&file)).await?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    pub(super) async fn keep_account(&self, account: &AccountCredentials) -> io::Result<()> {
        let (file, content) = (self.account.clone(), serde_json::to_vec(account)?);
        off_runtime(move || replace(&file, &content)).await
    }

    pub(super) async fn forget_account(&self) -> io::Result<()> {
        let file = self.account.clone();
        off_runtime(move || fs::remove_file(file)).await
    }
}

/// 16 hex digits.
fn id(directory: &str, of: &[String]) -> String {
    let mut digest = Context::new(&SHA256);
    for part in [directory].into_iter().chain(of.iter().map(String::as_str)) {
        digest.update(part.as_bytes());
        digest.update(b"\n");
    }
    HEXLOWER.encode(&digest.finish().as_ref()[..8])
}

fn read(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Either the old content is there or the new one, whenever the power fails.
fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let new = temporary(file);
    let mut opened = create(&new)?;
    opened.write_all(content)?;
    opened.sync_all()?;
    fs::rename(new, file)
}

fn temporary(file: &Path) -> PathBuf {
    file.with_added_extension("new")
}

/// Creates an empty file that nobody else may read.
fn create(file: &Path) -> io::Result<File> {
    // One that is left over might be another's, and readable.
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)
}
