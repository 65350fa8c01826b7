//! Packages as C99 sources.

use crate::Failure;
use crate::failure::{Usage, say, say_json};
use crate::package::opened;
use clap::ArgMatches;
use kiln_c99::{Export, Weights};
use serde_json::json;
use std::path::PathBuf;

/// The `export-c` command.
pub(crate) fn export(m: &ArgMatches) -> Result<(), Failure> {
    let package = opened(m, "file")?;
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
    for given in m.get_many::<String>("size").into_iter().flatten() {
        let parts = given.split_once('=');
        let size =
            parts.and_then(|(name, n)| Some((name, n.parse::<i64>().ok().filter(|n| *n > 0)?)));
        let (name, n) =
            size.ok_or_else(|| Usage(format!("--size {given}: a size is NAME=N, from 1 on")))?;
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
