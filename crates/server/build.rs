//! Makes sure that there is a folder to embed, so that `cargo test` works on a clean clone, before Vite has run.
//! Without the app the server shows a page that says how to build it.

use std::{env, fs, path::Path};

fn main() {
    let app = Path::new("../../web/dist");
    fs::create_dir_all(app).expect("web/dist must be a folder that can be created");
    println!("cargo::rerun-if-changed={}", app.display());
    if env::var("PROFILE").is_ok_and(|profile| profile == "release")
        && !app.join("index.html").exists()
    {
        println!(
            "cargo::warning=this server is built without the web app; `make build` builds both"
        );
    }
}
