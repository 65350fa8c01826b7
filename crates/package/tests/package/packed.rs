//! Packed weights, and programs of one machine, in packages.

use crate::made::{contents, input};
use kiln_package::{Contents, Features, Options, Package};

fn packed() -> Contents {
    Contents {
        packed: vec![Features::current().unwrap()],
        ..contents()
    }
}

fn chances(package: &Package) -> Vec<u8> {
    let forward = package.entry("forward").unwrap();
    let out = forward.run(input(0, &[3, 1, 6, 6])).unwrap();
    out[0].to_bytes().unwrap()
}

/// The range of a member's contents in a package: after its header, at a multiple of 64.
fn place_of(member: &str, package: &Package, bytes: &[u8]) -> std::ops::Range<usize> {
    let manifest: serde_json::Value = serde_json::from_str(&package.manifest()).unwrap();
    let mut files = manifest["files"].as_array().unwrap().iter();
    let file = files.find(|f| f["name"].as_str().unwrap().ends_with(member));
    let file = file.unwrap();
    let (name, len) = (file["name"].as_str().unwrap(), file["bytes"].as_u64());
    let header = |at: &usize| {
        bytes[*at..].starts_with(b"PK\x03\x04") && bytes[*at + 30..].starts_with(name.as_bytes())
    };
    let at = (0..bytes.len() - 100).find(header).unwrap();
    let extra = u16::from_le_bytes([bytes[at + 28], bytes[at + 29]]);
    let start = at + 30 + name.len() + extra as usize;
    assert!(start.is_multiple_of(64));
    start..start + len.unwrap() as usize
}

#[test]
fn packed_weights_are_read_in_the_place_of_packing_and_give_the_same_bits() {
    let plain = Package::from_bytes(&contents().to_bytes().unwrap()).unwrap();
    assert!(plain.packed_levels().is_empty());
    let mut bytes = packed().to_bytes().unwrap();
    let package = Package::from_bytes(&bytes).unwrap();
    let level = Features::current().unwrap().name();
    assert_eq!(
        package.packed_levels().into_iter().collect::<Vec<_>>(),
        [level]
    );
    assert_eq!(chances(&package), chances(&plain));

    // Changed weights in a trusted file change the results: so these are the ones that are read.
    let place = place_of(".packed", &package, &bytes);
    bytes[place].chunks_exact_mut(4).for_each(|x| {
        let value = f32::from_le_bytes(x.try_into().unwrap());
        x.copy_from_slice(&(value * 2.0).to_le_bytes());
    });
    assert!(Package::from_bytes(&bytes).is_err(), "checksums are there");
    let changed = Options::new().trusted(true).open_bytes(&bytes).unwrap();
    assert_ne!(chances(&changed), chances(&plain));
}

#[test]
fn packed_weights_of_other_weights_are_left_alone() {
    let mut others = contents();
    let weight = |c: &Contents| {
        c.tensors
            .iter()
            .position(|(n, _)| n == "conv.weight")
            .unwrap()
    };
    let at = weight(&others);
    let shape = others.tensors[at].1.shape().to_vec();
    others.tensors[at].1 = input(7, &shape);
    let wanted = chances(&Package::from_bytes(&others.to_bytes().unwrap()).unwrap());

    let package = Package::from_bytes(&packed().to_bytes().unwrap()).unwrap();
    assert_ne!(chances(&package), wanted);
    package.set("conv.weight", input(7, &shape)).unwrap();
    assert_eq!(chances(&package), wanted);

    // Saved with changed weights, the package has no packed ones; saved unchanged, it has them.
    let file = std::env::temp_dir().join(format!("kiln-packed-{}.kiln", std::process::id()));
    package.save(&file).unwrap();
    let saved = Package::open(&file).unwrap();
    assert!(saved.packed_levels().is_empty());
    assert_eq!(chances(&saved), wanted);
    package.reset().unwrap();
    package.save(&file).unwrap();
    let saved = Package::open(&file).unwrap();
    assert_eq!(saved.packed_levels(), package.packed_levels());
    assert_eq!(chances(&saved), chances(&package));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_machine_takes_the_program_that_was_tuned_for_it_and_no_other() {
    let machine = Package::from_bytes(&contents().to_bytes().unwrap()).unwrap();
    let machine = machine.machine().unwrap().to_string();
    // A program that no run can take.
    let mut tuned = contents();
    let mut wrong = tuned.entries[0].programs[0].clone();
    wrong.program.signature.results[0].name = "something else".into();
    wrong.machine = Some("cpu of another kind".into());
    tuned.entries[0].programs.insert(0, wrong);
    let package = Package::from_bytes(&tuned.to_bytes().unwrap()).unwrap();
    assert_eq!(
        package.machines().into_iter().collect::<Vec<_>>(),
        ["cpu of another kind"]
    );
    chances(&package);

    tuned.entries[0].programs[0].machine = Some(machine);
    let package = Package::from_bytes(&tuned.to_bytes().unwrap()).unwrap();
    let error = package.entry("forward").unwrap_err().to_string();
    assert!(error.contains("not what the manifest says"), "{error}");

    // One program for any machine is required.
    tuned.entries[0].programs.truncate(1);
    assert!(tuned.to_bytes().is_err());
}
