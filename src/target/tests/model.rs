//! Random requests, many in flight, against a vector of bytes.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::model::QueueExitCause;

const SIZE: u64 = 1 << 20;
const BLOCK: u64 = 4096;

#[derive(Debug, Clone)]
struct Step {
    op: Op,
    block: u64,
    blocks: u64,
    byte: u8,
    fua: bool,
    no_unmap: bool,
}

impl Step {
    fn request(&self) -> Request {
        let len = if self.op == Op::Flush { 0 } else { (self.blocks * BLOCK) as u32 };
        let (fua, no_unmap) = (self.fua && self.op == Op::Write, self.no_unmap);
        Request { fua, no_unmap, ..Request::new(self.op, self.block * BLOCK, len) }
    }

    fn range(&self) -> std::ops::Range<usize> {
        let start = (self.block * BLOCK) as usize;
        start..start + self.request().len as usize
    }

    fn data(&self) -> Vec<u8> {
        // Every block differs, so that data in the wrong place shows.
        let blocks = (0..self.request().data_len() / 512).map(|n| self.byte.wrapping_add(n as u8));
        blocks.flat_map(|byte| [byte; 512]).collect()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        4 => Just(Op::Write),
        3 => Just(Op::Read),
        1 => Just(Op::Discard),
        2 => Just(Op::WriteZeroes),
        1 => Just(Op::Flush),
    ];
    let most = u64::from(MAX_IO) / BLOCK;
    let place = (0..SIZE / BLOCK, 1..=most)
        .prop_map(|(block, blocks)| (block, blocks.min(SIZE / BLOCK - block)));
    (op, place, any::<u8>(), any::<bool>(), any::<bool>()).prop_map(
        |(op, (block, blocks), byte, fua, no_unmap)| Step {
            op,
            block,
            blocks,
            byte,
            fua,
            no_unmap,
        },
    )
}

/// What is sent at once, in any order of service: no two touch the same block.
fn batch() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..32).prop_map(|steps| {
        let mut apart: Vec<Step> = Vec::new();
        for step in steps {
            let touches = |other: &Step| {
                step.block < other.block + other.blocks && other.block < step.block + step.blocks
            };
            if !apart.iter().any(touches) {
                apart.push(step);
            }
        }
        apart
    })
}

/// Serves `batches` and compares every read and, at last, all of it.
fn agrees(disk: &Disk, batches: &[Vec<Step>]) -> Result<Vec<u8>, TestCaseError> {
    let mut model = vec![0; SIZE as usize];
    for batch in batches {
        let answers: Vec<_> =
            batch.iter().map(|step| disk.submit(step.request(), step.data())).collect();
        for (step, answer) in batch.iter().zip(answers) {
            let (result, data) = settled(answer);
            prop_assert_eq!(result, Ok(()), "{:?}", step);
            match step.op {
                Op::Read => prop_assert!(data == model[step.range()], "{:?}", step),
                Op::Write => model[step.range()].copy_from_slice(&step.data()),
                Op::Discard | Op::WriteZeroes => model[step.range()].fill(0),
                Op::Flush => {}
            }
        }
    }
    for start in (0..SIZE).step_by(MAX_IO as usize) {
        let read = disk.read(start, MAX_IO);
        let end = start as usize + MAX_IO as usize;
        prop_assert!(read.as_deref() == Ok(&model[start as usize..end]), "from {start} on");
    }
    Ok(model)
}

fn file_agrees(path: &Path, direct: bool, batches: &[Vec<Step>]) -> Result<(), TestCaseError> {
    let failed = |error: &dyn ToString| TestCaseError::fail(error.to_string());
    let file = fs::File::create(path).map_err(|e| failed(&e))?;
    file.set_len(SIZE).map_err(|e| failed(&e))?;
    let spec = spec(file_spec(path, direct)).build().map_err(|e| failed(&e))?;
    let disk = Disk::open(spec).map_err(|e| failed(&e))?;
    let model = agrees(&disk, batches)?;
    prop_assert_eq!(disk.stop().cause, QueueExitCause::Stopped);
    let bytes = fs::read(path).map_err(|e| failed(&e))?;
    prop_assert!(bytes == model, "the file differs from what was read from the device");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn ram_is_a_disk(batches in prop::collection::vec(batch(), 1..8)) {
        let failed = |error: &dyn ToString| TestCaseError::fail(error.to_string());
        let spec = spec(TargetSpec::Ram { size: SIZE }).build().map_err(|e| failed(&e))?;
        let disk = Disk::open(spec).map_err(|e| failed(&e))?;
        agrees(&disk, &batches)?;
        prop_assert_eq!(disk.stop().cause, QueueExitCause::Stopped);
    }

    #[test]
    fn a_buffered_file_is_a_disk(batches in prop::collection::vec(batch(), 1..8)) {
        let dir = tempfile::tempdir()?;
        file_agrees(&dir.path().join("disk"), false, &batches)?;
    }

    #[test]
    fn a_file_without_the_page_cache_is_a_disk(batches in prop::collection::vec(batch(), 1..8)) {
        let dir = tempfile::tempdir()?;
        file_agrees(&dir.path().join("disk"), true, &batches)?;
    }
}

#[test]
fn queues_share_one_memory() -> TestResult {
    let target = Registry::default().open(&spec(TargetSpec::Ram { size: SIZE }).build()?)?;
    let (one, two) = (Disk::of(Arc::clone(&target))?, Disk::of(target)?);
    let half = SIZE / 2;
    let answers: Vec<_> = (0..half)
        .step_by(4096)
        .flat_map(|at| {
            let request = |at| Request::new(Op::Write, at, 4096);
            [one.submit(request(at), vec![1; 4096]), two.submit(request(half + at), vec![2; 4096])]
        })
        .collect();
    for answer in answers {
        assert_eq!(settled(answer).0, Ok(()));
    }
    assert_eq!(one.read(half, MAX_IO), Ok(vec![2; MAX_IO as usize]));
    assert_eq!(two.read(0, MAX_IO), Ok(vec![1; MAX_IO as usize]));
    one.stop();
    two.stop();
    Ok(())
}
