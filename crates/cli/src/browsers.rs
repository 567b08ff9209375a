//! Where browsers are, on Linux, macOS and Windows.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

/// What decides which settings a browser understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Chromium,
    Firefox,
}

/// A browser that this program knows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Product {
    /// What `--browser` and its profile's folder call it.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    /// Linux: programs on the PATH, then the names that Flatpak gives.
    programs: &'static [&'static str],
    /// macOS: the program in `Applications`.
    application: &'static str,
    /// Windows: the program in `Program Files` or the user's own.
    executable: &'static str,
}

/// In order of preference: Chromium and what is made from it can play with less delay (docs/operating.md).
pub(crate) const PRODUCTS: [Product; 5] = [
    Product {
        id: "chrome",
        name: "Google Chrome",
        family: Family::Chromium,
        programs: &["google-chrome-stable", "google-chrome", "com.google.Chrome"],
        application: "Google Chrome.app/Contents/MacOS/Google Chrome",
        executable: "Google/Chrome/Application/chrome.exe",
    },
    Product {
        id: "chromium",
        name: "Chromium",
        family: Family::Chromium,
        programs: &["chromium", "chromium-browser", "org.chromium.Chromium"],
        application: "Chromium.app/Contents/MacOS/Chromium",
        executable: "Chromium/Application/chrome.exe",
    },
    Product {
        id: "edge",
        name: "Microsoft Edge",
        family: Family::Chromium,
        programs: &[
            "microsoft-edge-stable",
            "microsoft-edge",
            "com.microsoft.Edge",
        ],
        application: "Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
        executable: "Microsoft/Edge/Application/msedge.exe",
    },
    Product {
        id: "brave",
        name: "Brave",
        family: Family::Chromium,
        programs: &[
            "brave-browser-stable",
            "brave-browser",
            "brave",
            "com.brave.Browser",
        ],
        application: "Brave Browser.app/Contents/MacOS/Brave Browser",
        executable: "BraveSoftware/Brave-Browser/Application/brave.exe",
    },
    Product {
        id: "firefox",
        name: "Firefox",
        family: Family::Firefox,
        programs: &["firefox", "firefox-esr", "org.mozilla.firefox"],
        application: "Firefox.app/Contents/MacOS/firefox",
        executable: "Mozilla Firefox/firefox.exe",
    },
];

/// The operating systems, as far as they differ here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Linux,
    Mac,
    Windows,
}

/// What is known of the computer: everything that the search depends on, so that it can be tested.
#[derive(Debug, Clone)]
pub(crate) struct Computer {
    pub(crate) system: System,
    pub(crate) home: PathBuf,
    /// The folders of the PATH.
    pub(crate) path: Vec<PathBuf>,
    /// Windows: where programs are installed. Elsewhere empty.
    pub(crate) program_folders: Vec<PathBuf>,
    /// Where programs keep their data.
    pub(crate) data: PathBuf,
}

/// A browser that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Browser {
    pub(crate) name: String,
    pub(crate) family: Family,
    pub(crate) program: PathBuf,
    /// The folder for its profiles: one that it may write to, even if it is confined.
    pub(crate) profiles: PathBuf,
    id: String,
}

/// Which browser the user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    Product(&'static Product),
    Program(PathBuf),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(product) = PRODUCTS.iter().find(|product| product.id == text) {
            Ok(Self::Product(product))
        } else if text.contains(['/', '\\']) {
            Ok(Self::Program(PathBuf::from(text)))
        } else {
            let ids: Vec<_> = PRODUCTS.iter().map(|product| product.id).collect();
            Err(format!(
                "expected {}, or the path of a program",
                ids.join(", ")
            ))
        }
    }
}

impl Computer {
    /// This one.
    pub(crate) fn this() -> Option<Self> {
        let variable = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let system = match std::env::consts::OS {
            "windows" => System::Windows,
            "macos" => System::Mac,
            _ => System::Linux,
        };
        let home = std::env::home_dir()?;
        let program_folders = ["ProgramFiles", "ProgramFiles(x86)", "LOCALAPPDATA"]
            .into_iter()
            .filter_map(variable);
        let data = match system {
            System::Linux => variable("XDG_DATA_HOME").filter(|path| path.is_absolute()),
            System::Mac => Some(home.join("Library/Application Support")),
            System::Windows => variable("LOCALAPPDATA"),
        };
        Some(Self {
            path: variable("PATH")
                .map(|path| std::env::split_paths(&path).collect())
                .unwrap_or_default(),
            program_folders: if system == System::Windows {
                program_folders.collect()
            } else {
                Vec::new()
            },
            data: data.unwrap_or_else(|| home.join(".local/share")),
            home,
            system,
        })
    }

    /// The browser that is wanted, or the best one there is.
    pub(crate) fn find(&self, wanted: Option<&Wanted>) -> Option<Browser> {
        match wanted {
            Some(Wanted::Product(product)) => self.find_product(product),
            Some(Wanted::Program(program)) => {
                program.is_file().then(|| self.browser_at(program.clone()))
            }
            None => PRODUCTS
                .iter()
                .find_map(|product| self.find_product(product)),
        }
    }

    fn find_product(&self, product: &Product) -> Option<Browser> {
        let program = self
            .places(product)
            .into_iter()
            .find(|place| is_program(place))?;
        Some(Browser {
            name: product.name.to_owned(),
            family: product.family,
            profiles: self.profiles_for(&program),
            program,
            id: product.id.to_owned(),
        })
    }

    /// A program that the user named: its family is guessed from its name.
    fn browser_at(&self, program: PathBuf) -> Browser {
        let stem = program
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        let is_firefox = ["firefox", "librewolf", "waterfox", "floorp"]
            .iter()
            .any(|known| stem.contains(known));
        let id = stem
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        Browser {
            name: stem,
            family: if is_firefox {
                Family::Firefox
            } else {
                Family::Chromium
            },
            profiles: self.profiles_for(&program),
            program,
            id,
        }
    }

    /// Where a product may be, best first.
    fn places(&self, product: &Product) -> Vec<PathBuf> {
        match self.system {
            System::Linux => {
                let usual = [
                    "/usr/bin",
                    "/usr/local/bin",
                    "/snap/bin",
                    "/var/lib/flatpak/exports/bin",
                ];
                let own = self.home.join(".local/share/flatpak/exports/bin");
                let folders: Vec<_> = self
                    .path
                    .iter()
                    .cloned()
                    .chain(usual.map(PathBuf::from))
                    .chain([own])
                    .collect();
                let in_folders = |program| {
                    folders
                        .iter()
                        .map(move |folder: &PathBuf| folder.join(program))
                };
                product.programs.iter().flat_map(in_folders).collect()
            }
            System::Mac => [
                PathBuf::from("/Applications"),
                self.home.join("Applications"),
            ]
            .map(|folder| folder.join(product.application))
            .into(),
            System::Windows => self
                .program_folders
                .iter()
                .map(|folder| folder.join(product.executable))
                .collect(),
        }
    }

    /// Snap and Flatpak let a program write to one folder of its own only.
    fn profiles_for(&self, program: &Path) -> PathBuf {
        if let Some(snap) = snap_name(program) {
            return self.home.join("snap").join(snap).join("common/antiphon");
        }
        if let Some(id) = program
            .parent()
            .filter(|folder| folder.ends_with("flatpak/exports/bin"))
            .and(program.file_name())
        {
            return self.home.join(".var/app").join(id).join("data/antiphon");
        }
        self.data.join(if self.system == System::Linux {
            "antiphon"
        } else {
            "Antiphon"
        })
    }
}

impl Browser {
    /// A profile for each buffer size: a browser that already runs would not take another size.
    pub(crate) fn profile(&self, buffer_frames: u32) -> PathBuf {
        self.profiles.join(format!("{}-{buffer_frames}", self.id))
    }
}

/// The snap that a program belongs to: `/snap/bin/NAME`, or Ubuntu's script that starts it.
fn snap_name(program: &Path) -> Option<String> {
    if program.parent() == Some(Path::new("/snap/bin")) {
        return program
            .file_name()
            .and_then(OsStr::to_str)
            .map(str::to_owned);
    }
    let is_small = program
        .metadata()
        .is_ok_and(|metadata| metadata.len() < 16_384);
    let script = is_small
        .then(|| fs::read_to_string(program).ok())
        .flatten()?;
    let (_, rest) = script
        .starts_with("#!")
        .then(|| script.split_once("/snap/bin/"))
        .flatten()?;
    let name: String = rest
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computer(system: System) -> Computer {
        Computer {
            system,
            home: "/home/ann".into(),
            path: vec!["/opt/bin".into()],
            program_folders: vec!["C:/Program Files".into()],
            data: "/home/ann/data".into(),
        }
    }

    fn product(id: &str) -> &'static Product {
        PRODUCTS
            .iter()
            .find(|product| product.id == id)
            .expect("a known product")
    }

    #[test]
    fn looks_where_each_system_keeps_its_programs() {
        let places = |system, id| computer(system).places(product(id));
        assert_eq!(
            places(System::Linux, "edge")[0],
            Path::new("/opt/bin/microsoft-edge-stable")
        );
        for place in [
            "/usr/bin/chromium",
            "/snap/bin/chromium",
            "/var/lib/flatpak/exports/bin/org.chromium.Chromium",
            "/home/ann/.local/share/flatpak/exports/bin/org.chromium.Chromium",
        ] {
            assert!(
                places(System::Linux, "chromium").contains(&place.into()),
                "{place}"
            );
        }
        let mac = places(System::Mac, "brave");
        assert_eq!(
            mac[0],
            Path::new("/Applications/Brave Browser.app/Contents/MacOS/Brave Browser")
        );
        assert!(mac[1].starts_with("/home/ann/Applications"));
        let windows = places(System::Windows, "edge");
        assert_eq!(
            windows,
            [Path::new(
                "C:/Program Files/Microsoft/Edge/Application/msedge.exe"
            )]
        );
    }

    #[test]
    fn a_profile_is_where_its_browser_may_write() {
        let computer = computer(System::Linux);
        let profiles = |program: &str| computer.profiles_for(Path::new(program));
        assert_eq!(
            profiles("/usr/bin/none"),
            Path::new("/home/ann/data/antiphon")
        );
        assert_eq!(
            profiles("/snap/bin/chromium"),
            Path::new("/home/ann/snap/chromium/common/antiphon")
        );
        assert_eq!(
            profiles("/var/lib/flatpak/exports/bin/org.mozilla.firefox"),
            Path::new("/home/ann/.var/app/org.mozilla.firefox/data/antiphon")
        );
    }

    #[test]
    fn recognises_a_script_that_starts_a_snap() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("firefox");
        fs::write(&script, "#!/bin/sh\nexec /snap/bin/firefox \"$@\"\n").expect("written");
        assert_eq!(snap_name(&script).as_deref(), Some("firefox"));
        fs::write(&script, "#!/bin/sh\nexec /usr/lib/firefox/firefox \"$@\"\n").expect("written");
        assert_eq!(snap_name(&script), None);
    }

    #[test]
    fn a_program_named_by_its_path_is_taken_for_what_its_name_says() {
        let computer = computer(System::Linux);
        let browser = computer.browser_at("/opt/Firefox Nightly/firefox-bin".into());
        assert_eq!(
            (browser.family, browser.id.as_str()),
            (Family::Firefox, "firefox-bin")
        );
        assert_eq!(
            computer.browser_at("/opt/vivaldi/vivaldi".into()).family,
            Family::Chromium
        );
        assert_eq!("firefox".parse(), Ok(Wanted::Product(product("firefox"))));
        assert_eq!("./chrome".parse(), Ok(Wanted::Program("./chrome".into())));
        assert!("netscape".parse::<Wanted>().is_err());
    }
}
