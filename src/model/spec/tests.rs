//! What a spec refuses, and in what two of them differ.

use super::*;

fn keys_refused(queues: QueueSpec, block: BlockSize, size: u64) -> Vec<&'static str> {
    let Ok(name) = DeviceName::new("x") else { return vec!["name"] };
    let built = DeviceSpec::builder(name, TargetSpec::Null { size })
        .queues(queues)
        .block(block)
        .try_build();
    built.err().unwrap_or_default().iter().map(|p| p.key).collect()
}

#[test]
fn f35_every_value_out_of_range_is_refused_at_once() {
    let bad = QueueSpec { count: 0, depth: 4097, max_io: 513 };
    let block = BlockSize { logical: Some(513), physical: Some(256) };
    let keys = keys_refused(bad, block, 0);
    assert_eq!(keys, ["queues", "depth", "max_io", "logical_block", "physical_block", "size"]);
}

#[test]
fn f35_legal_edges_are_taken() {
    for (count, depth, max_io) in [(1, 1, 4096), (4096, 4096, 32 << 20), (1, 3, 8192)] {
        let queues = QueueSpec { count, depth, max_io };
        assert_eq!(keys_refused(queues, BlockSize::default(), 512), [""; 0]);
    }
}

#[test]
fn what_differs_is_named_by_its_key() -> Result<(), Box<dyn std::error::Error>> {
    let null = |size| TargetSpec::Null { size };
    let build = |b: DeviceSpecBuilder| b.build();
    let name = DeviceName::new("x")?;
    let there = build(
        DeviceSpec::builder(name.clone(), null(4096)).id(DeviceId(3)).origin(Origin::Config),
    )?;
    let asked = build(DeviceSpec::builder(name.clone(), null(4096)))?;
    assert_eq!(asked.differences(&there), [""; 0]);
    assert_eq!(there.differences(&asked), ["id"]);
    let other = build(
        DeviceSpec::builder(name, null(8192))
            .busy(BusyPolicy::Wait)
            .recovery(true)
            .id(DeviceId(4))
            .affinity(false),
    )?;
    assert_eq!(other.differences(&there), ["id", "size", "affinity", "busy", "recovery"]);
    let ram = TargetSpec::Ram { size: 4096 };
    assert_eq!(
        build(DeviceSpec::builder(there.name().clone(), ram))?.differences(&there),
        ["target"]
    );
    Ok(())
}

#[test]
fn f78_sizes_that_are_no_blocks_are_refused() {
    let q = QueueSpec::default();
    for size in [0, 1, 511, 513] {
        assert_eq!(keys_refused(q, BlockSize::default(), size), ["size"], "{size}");
    }
    for size in [512, 4096] {
        assert_eq!(keys_refused(q, BlockSize::default(), size), [""; 0], "{size}");
    }
    let four_k = BlockSize { logical: Some(4096), physical: None };
    assert_eq!(keys_refused(q, four_k, 512), ["size"]);
}
