//! What a benchmark found: as JSON, and as a table.
//!
//! ```text
//!   CASE                          MEASURE   MEDIAN     MIN      MAX      RATIO
//!   order=delete-first workers=64 teardown  265.1 ms   260 ms   270 ms   1.00
//! ```

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::seconds;
use super::table::{Align::Left, Align::Right, Table};

/// A benchmark's findings, with what one must know to compare them with others.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// Which benchmark.
    pub bench: &'static str,
    /// Where it ran.
    pub environment: Environment,
    /// What it found.
    pub results: Vec<Measured>,
}

/// Where a benchmark ran.
#[derive(Debug, Serialize)]
pub struct Environment {
    /// Release of the kernel.
    pub kernel: String,
    /// Processors this process may use.
    pub processors: usize,
    /// Memory of the host in bytes.
    pub memory: u64,
    /// `release` or `debug`.
    pub build: &'static str,
    /// Version of ublkd.
    pub version: &'static str,
    /// The command line.
    pub command: Vec<String>,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// So many a second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// A number of things.
    #[serde(rename = "1")]
    Count,
}

/// One measure of one case over all rounds.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// What was varied, with its value here.
    #[serde(flatten, serialize_with = "as_map")]
    pub case: Vec<(&'static str, Value)>,
    /// What was measured.
    pub measure: String,
    /// Of what the numbers are.
    pub unit: Unit,
    /// The median of the rounds.
    pub median: f64,
    /// The least of the rounds.
    pub min: f64,
    /// The greatest of the rounds.
    pub max: f64,
    /// The median against that of the first case; nothing if that is 0.
    pub ratio: Option<f64>,
}

/// Sums up `samples` (of at least one round).
#[must_use]
pub fn measured(
    case: Vec<(&'static str, Value)>,
    measure: impl Into<String>,
    unit: Unit,
    samples: impl IntoIterator<Item = f64>,
) -> Measured {
    let mut sorted: Vec<f64> = samples.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    let (last, middle) = (sorted.len().saturating_sub(1), sorted.len() / 2);
    // Of an even number the mean of the two in the middle.
    let median = if sorted.len() % 2 == 1 { at(middle) } else { (at(last / 2) + at(middle)) / 2.0 };
    let measure = measure.into();
    Measured { case, measure, unit, median, min: at(0), max: at(last), ratio: None }
}

/// Fills in the ratios: each against the first result of the same measure.
#[must_use]
pub fn against_first(mut results: Vec<Measured>) -> Vec<Measured> {
    for index in 0..results.len() {
        let first = results.iter().find(|first| first.measure == results[index].measure);
        let base = first.map_or(0.0, |first| first.median);
        results[index].ratio = (base != 0.0).then(|| results[index].median / base);
    }
    results
}

/// The findings for people.
#[must_use]
pub fn findings(findings: &Findings) -> String {
    let Environment { kernel, processors, memory, build, version, .. } = &findings.environment;
    let mut table = Table::new([
        ("CASE", Left),
        ("MEASURE", Left),
        ("MEDIAN", Right),
        ("MIN", Right),
        ("MAX", Right),
        ("RATIO", Right),
    ]);
    for result in &findings.results {
        let case: Vec<_> = result.case.iter().map(|(key, value)| varied(key, value)).collect();
        let number = |value| quantity(value, result.unit);
        table.row([
            case.join(" "),
            result.measure.clone(),
            number(result.median),
            number(result.min),
            number(result.max),
            result.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
        ]);
    }
    format!(
        "{}: Linux {kernel}, {processors} processors, {:.1} GiB, ublkd {version} ({build})\n\n{}",
        findings.bench,
        *memory as f64 / f64::from(1 << 30),
        table.text()
    )
}

fn varied(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => format!("{key}={text}"),
        other => format!("{key}={other}"),
    }
}

fn quantity(value: f64, unit: Unit) -> String {
    match unit {
        // An I/O takes microseconds and a device about a thousand; a tenth more or less counts.
        Unit::Seconds if value < 0.000_1 => format!("{:.2} \u{b5}s", value * 1e6),
        Unit::Seconds if value < 0.01 => format!("{:.0} \u{b5}s", value * 1e6),
        Unit::Seconds => seconds(value),
        Unit::PerSecond => format!("{value:.0}/s"),
        Unit::Bytes => format!("{:.1} KiB", value / 1024.0),
        Unit::Count => format!("{value:.2}"),
    }
}

fn as_map<S: Serializer>(case: &[(&'static str, Value)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(case.iter().map(|(key, value)| (key, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Findings {
        let case = |order: &str| vec![("order", Value::from(order)), ("workers", Value::from(16))];
        let results = vec![
            measured(case("serial"), "teardown", Unit::Seconds, [4.0, 2.0, 3.0]),
            measured(case("serial"), "rate", Unit::PerSecond, [100.0]),
            measured(case("floor"), "teardown", Unit::Seconds, [0.25, 0.5, 0.75, 1.0]),
        ];
        let environment = Environment {
            kernel: "7.3.4".into(),
            processors: 2,
            memory: 3 << 30,
            build: "release",
            version: "0",
            command: vec!["ublkd".into()],
        };
        Findings { bench: "teardown", environment, results: against_first(results) }
    }

    #[test]
    fn medians_and_ratios_are_of_the_same_measure() {
        let results = sample().results;
        let numbers: Vec<_> = results.iter().map(|r| (r.median, r.min, r.max, r.ratio)).collect();
        let expected = [
            (3.0, 2.0, 4.0, Some(1.0)),
            (100.0, 100.0, 100.0, Some(1.0)),
            (0.625, 0.25, 1.0, Some(0.625 / 3.0)),
        ];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn json_has_what_was_varied_beside_the_numbers() -> Result<(), serde_json::Error> {
        let json = serde_json::to_value(sample())?;
        let last = &json["results"][2];
        assert_eq!((&last["order"], &last["workers"]), (&"floor".into(), &16.into()));
        assert_eq!((&last["unit"], &last["min"]), (&"s".into(), &0.25.into()));
        assert_eq!(json["environment"]["processors"], 2);
        Ok(())
    }

    #[test]
    fn the_table_has_a_row_a_result() {
        let text = findings(&sample());
        let rows: Vec<_> = text.lines().collect();
        assert_eq!(rows[0], "teardown: Linux 7.3.4, 2 processors, 3.0 GiB, ublkd 0 (release)");
        assert_eq!(rows.len(), 6, "{text}");
        assert!(rows[5].starts_with("order=floor workers=16   teardown  625.0 ms  250.0 ms"));
        assert!(rows[5].ends_with("0.208"), "{text}");
    }
}
