//! What errors look like.

use crate::{matrix, vector};
use kiln::{Tensor, Var};

const FILE: &str = "errors.rs";

/// The text of an error with line and column numbers of a test file left out.
pub(crate) fn shown(e: kiln::Error, file: &str) -> String {
    let text = e.to_string();
    let mut out = String::new();
    for line in text.lines() {
        let line = line.trim_end();
        let cut = line
            .find(&format!("{file}:"))
            .map_or(line.len(), |at| at + file.len());
        let tail =
            line[cut..].trim_start_matches([':', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        let line = format!("{}{tail}", &line[..cut]);
        let digits = line.chars().take_while(|c| c.is_ascii_digit()).count();
        let line = format!("{}{}", " ".repeat(digits), &line[digits..]);
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[test]
fn shapes_that_do_not_fit() {
    let x = matrix(2, 3);
    let y = x.matmul(&matrix(4, 5));
    insta::assert_snapshot!(shown(y.to_vec::<f32>().unwrap_err(), FILE));
}

#[test]
fn dims_that_do_not_broadcast() {
    let sum = matrix(2, 3) + vector(&[1.0, 2.0]);
    insta::assert_snapshot!(shown(sum.realize().unwrap_err(), FILE));
}

#[test]
fn an_index_out_of_range_names_the_line_that_recorded_it() {
    let table = vector(&[1.0, 2.0, 3.0]);
    let index = Tensor::from_slice(&[0i64, 3], [2]);
    let picked = table.index_select(0, &index);
    let later = picked.exp() * 2.0;
    insta::assert_snapshot!(shown(later.to_vec::<f32>().unwrap_err(), FILE));
}

#[test]
fn the_same_plan_names_the_line_of_the_current_recording() {
    let pick = |i: i64| vector(&[1.0, 2.0, 3.0]).index_select(0, &Tensor::from_slice(&[i], [1]));
    pick(1).realize().unwrap();
    let elsewhere = vector(&[1.0, 2.0, 3.0]).index_select(0, &Tensor::from_slice(&[7i64], [1])); // here
    let e = elsewhere.realize().unwrap_err();
    assert!(e.to_string().contains("// here"), "{e}");
}

#[test]
fn a_value_that_a_cell_can_not_hold() {
    let v = Var::new(&vector(&[1.0])).unwrap();
    insta::assert_snapshot!(shown(v.assign(&vector(&[1.0, 2.0])).unwrap_err(), FILE));
}

#[test]
fn the_wrong_number_of_values() {
    let t = Tensor::from_slice(&[1.0f32, 2.0], [3]);
    insta::assert_snapshot!(shown(t.realize().unwrap_err(), FILE));
}
