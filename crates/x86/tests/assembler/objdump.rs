//! Comparison with another decoder.

use crate::forms::{self, List};
use crate::vector::{Address, GPRS};
use fastrand::Rng;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
use kiln_x86::Asm;
use std::process::Command;

#[test]
fn objdump_says_the_same() {
    let Ok(version) = Command::new("objdump").arg("--version").output() else {
        println!("skipped: objdump is not installed");
        return;
    };
    assert!(version.status.success());
    let mut rng = Rng::with_seed(6);
    let mut code = Vec::new();
    for form in forms::all() {
        for choice in form.choices() {
            let mut address = Address::random(&mut rng);
            if form.gathers() {
                address.index = None;
            }
            let operands = form.operands(choice, &mut rng, &GPRS, address.mem());
            let mut a = Asm::new(form.evex);
            match form.mask(choice, &mut rng) {
                Some(mask) => a.masked(form.op, form.width, mask, List(operands)),
                None => a.op(form.op, form.width, List(operands)),
            }
            code.extend(a.finish());
        }
    }
    let path = std::env::temp_dir().join(format!("kiln-x86-objdump-{}", std::process::id()));
    std::fs::write(&path, &code).unwrap();
    let arguments = [
        "-D",
        "-w",
        "-b",
        "binary",
        "-m",
        "i386:x86-64",
        "--no-show-raw-insn",
    ];
    let output = Command::new("objdump")
        .args(arguments)
        .arg(&path)
        .output()
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let theirs = text.lines().filter_map(|line| {
        let (at, text) = line.split_once(":\t")?;
        Some((u64::from_str_radix(at.trim(), 16).ok()?, normal(text)))
    });
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_gas_show_mnemonic_size_suffix(false);
    let ours = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE)
        .into_iter()
        .map(|i| {
            let mut text = String::new();
            formatter.format(&i, &mut text);
            (i.ip(), normal(&text))
        });
    let (ours, theirs): (Vec<_>, Vec<_>) = (ours.collect(), theirs.collect());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
}

/// Removes differences of notation.
fn normal(text: &str) -> String {
    let text = text.split('#').next().unwrap_or(text);
    let text = text.replace("{evex}", "").replace("{vex}", "");
    // Only one of them names comparisons that do not depend on the operands.
    let named = |(name, number): (&str, &str)| {
        let (of, operands) = text.strip_prefix(name)?.split_once(' ')?;
        Some(format!("vpcmp{of}{number},{operands}"))
    };
    let mut names = [("vpcmpfalse", "$0x3"), ("vpcmptrue", "$0x7")].into_iter();
    let text = names.find_map(named).unwrap_or(text);
    text.replace(char::is_whitespace, "")
        .replace(",1)", ")")
        .replace("0x0(", "(")
}
