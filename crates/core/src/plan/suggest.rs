//! "Did you mean": the closest of the names that there are.

/// The name that `wanted` was probably meant to be.
#[must_use]
pub fn closest<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // A typo changes a third of a name at most; anything else is another word.
    let most = match wanted.chars().count() {
        0..3 => 0,
        length => (length / 3).max(1),
    };
    names
        .into_iter()
        .filter(|name| !name.is_empty())
        .filter_map(|name| {
            let distance = match_distance(wanted, name, most)?;
            Some((distance, name))
        })
        .min()
        .map(|(_, name)| name)
}

fn match_distance(wanted: &str, name: &str, most: usize) -> Option<usize> {
    // `linstor` for `cozystack.linstor`.
    if name.rsplit_once('.').is_some_and(|(_, last)| last == wanted) {
        return Some(0);
    }
    // Two names of very different length are not worth the comparison.
    if wanted.len().abs_diff(name.len()) > most.saturating_mul(4) {
        return None;
    }
    let distance = distance(&wanted.to_lowercase(), &name.to_lowercase());
    (distance <= most).then_some(distance)
}

/// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    // Bounds the work; nobody's typo is in a key of this length.
    const LONGEST: usize = 256;
    let a: Vec<char> = a.chars().take(LONGEST).collect();
    let b: Vec<char> = b.chars().take(LONGEST).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let get = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX - 1);
            let mut best =
                (get(&row, j + 1) + 1).min(get(&next, j) + 1).min(get(&row, j) + usize::from(x != y));
            if i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x) {
                best = best.min(get(&before, j - 1) + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_recognised_and_other_words_are_not() {
        let names = ["linstor", "piraeus-operator", "piraeus-operator-crds"];
        assert_eq!(closest("linstro", names), Some("linstor"));
        assert_eq!(closest("Linstor", names), Some("linstor"));
        assert_eq!(closest("piraeus-operator-crd", names), Some("piraeus-operator-crds"));
        assert_eq!(closest("monitoring", names), None);
        assert_eq!(closest("", names), None);
        assert_eq!(closest("a", ["b"]), None);
    }

    #[test]
    fn the_last_part_of_a_name_is_enough() {
        assert_eq!(
            closest("linstor", ["cozystack.linstor-gui", "cozystack.linstor"]),
            Some("cozystack.linstor")
        );
    }

    #[test]
    fn non_ascii_names_do_not_panic() {
        assert_eq!(closest("größe", ["grösse", "größen"]), Some("größen"));
    }
}
