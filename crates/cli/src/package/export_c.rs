//! Packages as C99 sources.

use super::open_named;
use super::subject::sizes;
use crate::Failure;
use crate::failure::{say, say_json};
use clap::ArgMatches;
use kiln_c99::{Export, Weights};
use serde_json::json;
use std::path::PathBuf;

/// The `export-c` command.
pub(crate) fn export(m: &ArgMatches) -> Result<(), Failure> {
    let package = open_named(m, "file")?;
    let file = m.get_one::<PathBuf>("file");
    let stem = file
        .and_then(|f| f.file_stem())
        .map(|s| s.to_string_lossy());
    let name = m.get_one::<String>("name").cloned();
    let name = name.or(stem.map(|s| s.into_owned())).unwrap_or_default();
    let mut export = Export::new(name);
    for entry in m.get_many::<String>("entry").into_iter().flatten() {
        export = export.entry(entry);
    }
    for (name, n) in sizes(m)? {
        export = export.size(name, n);
    }
    let weights = match m.get_one::<String>("weights").map(|s| &s[..]) {
        Some("arrays") => Weights::Arrays,
        Some("file") => Weights::File,
        _ => Weights::Auto,
    };
    let folder = m.get_one::<PathBuf>("folder").ok_or("no folder is given")?;
    let sources = export.weights(weights).write(&package, folder)?;
    if m.get_flag("json") {
        let files = sources.files.iter();
        let files = files.map(|(name, contents)| json!({ "name": name, "bytes": contents.len() }));
        return say_json(&json!({ "files": files.collect::<Vec<_>>() }));
    }
    for (name, contents) in &sources.files {
        let path = folder.join(name);
        say(&format!(
            "{:>9} bytes  {}\n",
            contents.len(),
            path.display()
        ))?;
    }
    Ok(())
}
