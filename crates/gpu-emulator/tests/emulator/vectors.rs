//! The conformance vectors: every one runs. Its outputs equal those of hardware where these are stored, in
//! `fixtures/hardware/NAME.bin`.

use crate::support::fixture_path;
use kiln_gpu_emulator::vectors;

#[test]
fn outputs_are_those_of_hardware() {
    let (mut stored, all) = (0, vectors());
    for vector in &all {
        let ours = vector
            .emulate()
            .unwrap_or_else(|fault| panic!("{}: {fault}", vector.name));
        vector.compare(&ours, &ours).unwrap();
        let path = fixture_path(&format!("hardware/{}.bin", vector.name));
        if let Ok(hardware) = std::fs::read(path) {
            vector
                .compare(&ours, &hardware)
                .unwrap_or_else(|why| panic!("{why}"));
            stored += 1;
        }
    }
    println!("{stored} of {} vectors have outputs of hardware", all.len());
}

#[test]
fn a_wrong_output_is_noticed() {
    let all = vectors();
    let vector = all.iter().find(|v| v.name == "misc").unwrap();
    let ours = vector.emulate().unwrap();
    let mut wrong = ours.clone();
    wrong[3] ^= 1;
    assert!(vector.compare(&ours, &wrong).is_err());
}
