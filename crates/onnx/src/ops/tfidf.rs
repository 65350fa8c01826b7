//! Counts of word sequences in rows of words.

use super::text::{Key, keys};
use crate::call::{Call, Results, single};
use crate::fault::invalid;
use kiln_tensor::{Result, Tensor};
use std::collections::HashMap;

/// The maximum number of columns of the result.
const MAX_COLUMNS: usize = 1 << 24;

/// For each row, the number of times that sequences of words of a pool appear in it, where up to `max_skip_count` words
/// lie between two of their words.
pub(super) fn vectorize(c: &Call) -> Results {
    let size = |name: &str| {
        let n = usize::try_from(c.int(name, 0)?);
        n.map_err(|_| invalid(format!("{name} is negative")))
    };
    let (min_len, max_len) = (size("min_gram_length")?, size("max_gram_length")?);
    let skipped = size("max_skip_count")?;
    let columns = columns(c)?;
    let Some(width) = columns.iter().max().map(|n| n + 1) else {
        return Err(invalid("ngram_indexes is empty"));
    };
    let pool = pool(c, [min_len, max_len], &columns)?;
    let longest = pool.keys().map(Vec::len).max().unwrap_or(0);
    let (words, shape) = keys(c, 0)?;
    let (rows, length) = match shape[..] {
        [] => (1, 1),
        [n] => (1, n),
        [rows, n] if rows > 0 => (rows, n),
        _ => return Err(invalid(format!("takes [c] or [b, c], not {shape:?}"))),
    };
    let cells = rows.checked_mul(width).filter(|n| *n <= MAX_COLUMNS);
    let mut counts = vec![0f64; cells.ok_or_else(|| invalid("the result is too large"))?];
    for row in 0..rows {
        let words = &words[row * length..(row + 1) * length];
        let counts = &mut counts[row * width..(row + 1) * width];
        // Single words are counted once, whatever is skipped.
        let distances = 1..=(skipped + 1).min(length.max(1));
        let max_used = max_len.min(length).min(longest);
        for (distance, size) in distances.flat_map(|d| (min_len..=max_used).map(move |n| (d, n))) {
            if size == 0 || size == 1 && distance > 1 {
                continue;
            }
            let Some(span) = (size - 1).checked_mul(distance) else {
                continue;
            };
            for start in 0..length.saturating_sub(span) {
                let gram = (0..size).map(|i| words[start + i * distance].clone());
                if let Some(column) = pool.get(&gram.collect::<Vec<Key>>()) {
                    counts[*column] += 1.0;
                }
            }
        }
    }
    apply_weights(c, &mut counts, width)?;
    let counts: Vec<f32> = counts.into_iter().map(|n| n as f32).collect();
    let shape: Vec<i64> = match shape.len() {
        2 => vec![rows as i64, width as i64],
        _ => vec![width as i64],
    };
    single(Tensor::from_slice(&counts, &shape))
}

fn columns(c: &Call) -> Result<Vec<usize>> {
    let list = c.ints("ngram_indexes")?.unwrap_or_default();
    let column = |n: &i64| usize::try_from(*n).ok().filter(|n| *n < MAX_COLUMNS);
    let columns: Option<Vec<usize>> = list.iter().map(column).collect();
    columns.ok_or_else(|| invalid("an element of ngram_indexes is not a column"))
}

/// Returns the columns of the pool's sequences that are of lengths from `min_len` to `max_len`.
fn pool(
    c: &Call,
    [min_len, max_len]: [usize; 2],
    columns: &[usize],
) -> Result<HashMap<Vec<Key>, usize>> {
    let words: Vec<Key> = match c.ints("pool_int64s")? {
        Some(list) => list.into_iter().map(Key::Number).collect(),
        None => {
            let list = c.texts("pool_strings")?.unwrap_or_default();
            list.into_iter().map(Key::Text).collect()
        }
    };
    let starts = c.ints("ngram_counts")?.unwrap_or_default();
    let mut pool = HashMap::new();
    let mut number = 0;
    for (i, start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).map_or(words.len() as i64, |end| *end);
        let range = usize::try_from(*start).ok().zip(usize::try_from(end).ok());
        let range = range.and_then(|(a, b)| words.get(a..b));
        let range = range.ok_or_else(|| invalid("ngram_counts does not fit the pool"))?;
        for gram in range.chunks_exact(i + 1) {
            let column = columns.get(number);
            let column = column.ok_or_else(|| invalid("ngram_indexes is too short"))?;
            number += 1;
            if (min_len..=max_len).contains(&(i + 1)) {
                // Of equal sequences, the first counts.
                pool.entry(gram.to_vec()).or_insert(*column);
            }
        }
    }
    Ok(pool)
}

fn apply_weights(c: &Call, counts: &mut [f64], width: usize) -> Result<()> {
    let weights = c.floats("weights")?;
    if weights.as_ref().is_some_and(|w| w.len() < width) {
        return Err(invalid("weights is too short"));
    }
    let mode = c.text("mode", "")?;
    for (i, n) in counts.iter_mut().enumerate() {
        let weight = weights.as_ref().map_or(1.0, |w| w[i % width]);
        *n = match mode {
            "TF" => *n,
            "IDF" if *n > 0.0 => weight,
            "IDF" => 0.0,
            "TFIDF" => weight * *n,
            other => return Err(invalid(format!("there is no mode {other:?}"))),
        };
    }
    Ok(())
}
