//! The tests of the standard.

use crate::results::{difference, folders};
use kiln_goldens::Folder;

/// All 1,389 tests give the standard's results. Programs for the engine run them, whatever their shapes come from.
#[test]
fn the_standards_tests_pass() {
    let folder = Folder::onnx("standard").unwrap();
    let mut count = 0;
    let mut wrong = Vec::new();
    for case in folders(folder.path())
        .iter()
        .flat_map(|suite| folders(suite))
    {
        count += 1;
        if let Err(e) = difference(&case, [1e-3, 1e-6]) {
            wrong.push(format!("{}: {e}", case.display()));
        }
    }
    assert_eq!(count, 1389);
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
