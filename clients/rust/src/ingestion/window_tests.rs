use super::*;
use crate::proto::{Disposition, MemoryState};

fn opened(next_seq: u64, window_items: u32) -> IngestOpened {
    IngestOpened { next_seq, window_items, ..IngestOpened::default() }
}

fn window_with(next_seq: u64, credit: u32) -> Window {
    let mut window = Window::new(AckLevel::Unspecified);
    window.open(&opened(next_seq, credit), true).expect("the first opening is always right");
    window
}

/// Takes as many items as it may; returns how many that were.
fn fill(window: &mut Window) -> usize {
    let mut taken = 0;
    while window.has_room() {
        let seq = window.next_taken();
        window.take(MemoryInput { memory_id: format!("m-{seq}"), text: "note".into(), ..MemoryInput::default() });
        taken += 1;
    }
    taken
}

fn ack(through: u64, credit: u32) -> IngestAck {
    IngestAck { acked_through: through, durable_through: through, window_items: credit, ..IngestAck::default() }
}

#[test]
fn frames_hold_64_items_and_credit_is_never_exceeded() {
    let mut window = window_with(1, 100);
    assert_eq!(fill(&mut window), 64);
    assert_eq!(window.frame().items.len(), 64);
    assert_eq!(fill(&mut window), 36);
    let frame = window.frame();
    assert_eq!((frame.first_seq, frame.items.len()), (65, 36));
    assert!(!window.has_room() && !window.has_frame());

    window.acknowledge(&ack(10, 100));
    assert_eq!(fill(&mut window), 10);
    assert_eq!(window.frame().items.len(), 10);
}

#[test]
fn a_credit_of_nothing_is_a_pause() {
    let mut window = window_with(1, 10);
    fill(&mut window);
    window.frame();
    window.acknowledge(&ack(5, 0));
    assert!(!window.has_room() && !window.has_frame());
    window.acknowledge(&ack(10, 3));
    assert_eq!(fill(&mut window), 3);
}

#[test]
fn a_frame_is_never_larger_than_the_server_takes_unless_one_item_is() {
    let mut window = Window::new(AckLevel::Durable);
    let limits = IngestOpened { max_batch_items: 8, max_batch_bytes: 500, ..opened(1, 100) };
    window.open(&limits, true).expect("the first opening is always right");
    for size in [100, 100, 100, 100, 100, 900, 1] {
        window.take(MemoryInput::from("x".repeat(size)));
    }
    let sizes: Vec<_> = std::iter::from_fn(|| window.has_frame().then(|| window.frame().items.len())).collect();
    assert_eq!(sizes, [4, 1, 1, 1]);
}

#[test]
fn items_of_an_earlier_run_are_let_go_and_the_rest_is_sent() {
    let mut window = window_with(4, 10);
    assert_eq!(fill(&mut window), 13);
    let frame = window.frame();
    assert_eq!((frame.first_seq, frame.items[0].memory_id.as_str()), (4, "m-4"));
    assert_eq!(frame.items.len(), 10);
}

#[test]
fn after_a_reconnect_nothing_durable_is_sent_again() {
    let mut window = window_with(1, 100);
    fill(&mut window);
    window.frame();
    window.acknowledge(&ack(10, 100));
    window.open(&opened(21, 100), false).expect("between what is durable and what was taken");
    let frame = window.frame();
    assert_eq!((frame.first_seq, frame.items[0].memory_id.as_str()), (21, "m-21"));
    assert_eq!(frame.items.len(), 44);
}

#[test]
fn a_position_that_cannot_be_served_is_data_loss() {
    for next_seq in [10, 66] {
        let mut window = window_with(1, 100);
        fill(&mut window);
        window.frame();
        window.acknowledge(&ack(10, 100));
        let error = window.open(&opened(next_seq, 100), false).expect_err("not kept");
        assert_eq!(error.code(), Code::DataLoss);
    }
}

#[test]
fn an_item_whose_progress_was_lost_sight_of_ends_unspecified() {
    let mut window = Window::new(AckLevel::Organized);
    window.open(&opened(1, 3), true).expect("the first opening is always right");
    fill(&mut window);
    window.frame();
    let durable = |seq, level: AckLevel| IngestResult {
        seq,
        memory_id: format!("server-{seq}"),
        disposition: Disposition::Created.into(),
        level: level.into(),
        state: MemoryState::Stored.into(),
        ..IngestResult::default()
    };
    assert!(window.report(durable(1, AckLevel::Organized)).is_final);
    assert!(!window.report(durable(2, AckLevel::Durable)).is_final);

    let lost = window.open(&opened(3, 3), false).expect("between what is durable and what was taken");
    assert_eq!(lost, [Outcome::lost(2, "server-2".into())]);
    assert_eq!(window.frame().items[0].memory_id, "m-3");
}

#[test]
fn a_stream_is_drained_when_everything_taken_is_durable() {
    let mut window = window_with(1, 10);
    assert!(window.is_drained());
    fill(&mut window);
    assert!(!window.is_drained());
    window.frame();
    assert!(!window.is_drained());
    window.acknowledge(&ack(10, 10));
    assert!(window.is_drained());
    assert_eq!(window.last_sent(), 10);
}
