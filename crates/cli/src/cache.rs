//! Maintenance of the store of measurements.

use crate::Failure;
use crate::command::store_file;
use crate::failure::{say, say_json, warn};
use crate::tuning;
use clap::ArgMatches;
use kiln_compiler::tune::{Damage, Store};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The `cache` command.
pub(crate) fn cache(m: &ArgMatches) -> Result<ExitCode, Failure> {
    let Some((name, m)) = m.subcommand() else {
        return Err("no such command".into()); // clap does not let it come here
    };
    let file = store_file(m)?;
    let store = Store::new(&file);
    let checked = store.check();
    checked.map_err(|e| format!("{}: {e}", file.display()))?;
    let json = m.get_flag("json");
    match name {
        "list" | "show" => print(&store, &file, m, name == "list")?,
        "verify" => return verify(&store, &file, json),
        "merge" => return merge(&store, m, json),
        _ => {
            let key = m.get_one::<String>("key").map_or("", String::as_str);
            let removed = store.remove(|r| r.key.contains(key));
            let gone = removed.map_err(|e| format!("{}: {e}", file.display()))?;
            match json {
                true => say_json(&json!({ "removed": gone }))?,
                false => say(&format!("{gone} records removed\n"))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the records whose keys contain a text, as a list or in full.
fn print(store: &Store, file: &Path, m: &ArgMatches, list: bool) -> Result<(), Failure> {
    let beginning = File::open(file).and_then(|mut f| f.read(&mut [0]));
    match beginning {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            warn(&format!(
                "nothing was measured yet: there is no {}",
                file.display()
            ));
        }
        Err(e) => return Err(format!("{}: {e}", file.display()).into()),
        Ok(_) => {}
    }
    let mut records = store.records();
    if let Some(key) = m.get_one::<String>("key") {
        records.retain(|r| r.key.contains(&key[..]));
    }
    match (m.get_flag("json"), list) {
        (true, _) => say_json(&records)?,
        (_, true) => say(&tuning::list(&records))?,
        (_, false) => say(&tuning::show(&records))?,
    }
    let damaged = store.damage().len();
    if damaged > 0 {
        let file = file.display();
        warn(&format!(
            "{file}: {damaged} damaged lines were skipped; see kiln cache verify"
        ));
    }
    Ok(())
}

/// Damaged lines as JSON, for scripts.
fn lines(damage: &[Damage]) -> Vec<Value> {
    let line = |d: &Damage| json!({ "line": d.line, "why": d.text });
    damage.iter().map(line).collect()
}

/// Reports the damaged lines of the file.
fn verify(store: &Store, file: &Path, json: bool) -> Result<ExitCode, Failure> {
    let damage = store.verify();
    let damage = damage.map_err(|e| format!("{}: {e}", file.display()))?;
    let records = store.records().len();
    if json {
        say_json(&json!({ "records": records, "damaged_lines": lines(&damage) }))?;
    } else {
        let (file, damaged) = (file.display(), damage.len());
        let mut text = format!("{file}: {records} records, {damaged} damaged lines\n");
        for d in &damage {
            text += &format!("  line {}: {}\n", d.line, d.text);
        }
        say(&text)?;
    }
    Ok(ExitCode::from(u8::from(!damage.is_empty())))
}

/// Merges the records of other files. Fails if a file that is not empty holds none, since it is not a store then.
fn merge(store: &Store, m: &ArgMatches, json: bool) -> Result<ExitCode, Failure> {
    let (mut all, mut none) = (Vec::new(), Vec::new());
    for other in m.get_many::<PathBuf>("file").into_iter().flatten() {
        let name = other.display();
        let merged = store.merge(other).map_err(|e| format!("{name}: {e}"))?;
        let (added, older, damage) = (merged.added, merged.older, merged.damage);
        let empty = std::fs::metadata(other).is_ok_and(|m| m.len() == 0);
        if added + older == 0 && !empty {
            none.push(name.to_string());
        }
        if !json {
            let damaged = damage.len();
            say(&format!(
                "{name}: {added} records taken, {older} older ones left, {damaged} damaged lines skipped\n"
            ))?;
        }
        let damage = lines(&damage);
        all.push(json!({ "file": name.to_string(), "added": added, "older": older, "damaged_lines": damage }));
    }
    if json {
        say_json(&all)?;
    }
    match none.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(format!(
            "no record that this version reads is in {}",
            none.join(", ")
        )
        .into()),
    }
}
