//! Look-ups of handlers while types come and go.

use loom::thread;

use super::*;
use crate::flow::handler::call_settings::CallSettings;
use crate::flow::route::type_table::TableUse;
use crate::testing::loom::{Number, ONE, Seen, TWO, config, model};

fn add_type(route: &Route<Number>, usage: &mut TableUse, key: TypeKey) {
    let settings = CallSettings::of_queue(&config(1));
    let handlers = vec![Arc::new(Seen::default()).handler()];
    let registered = TypeHandlers::new(key, 0, "", handlers, settings);
    let home = Partitions::from_elem(0, 1);
    route.add_type(usage, Arc::new(registered.in_partitions(home)), None);
}

/// A type goes, and another one gets its place and its partition, between the two loads of a drain
/// thread that looks its handler up: it does not find the handler of the other type.
#[test]
fn loom_look_up_while_the_place_changes_hands() {
    model(2, || {
        let route = Route::new(&config(1));
        route.grow(&config(1), 1, 1);
        let (route, mut usage) = (Arc::new(route), TableUse::default());
        add_type(&route, &mut usage, ONE);
        let drain_thread = {
            let route = route.clone();
            thread::spawn(move || {
                let target = route.target(ONE, 0, Selector::ByType);
                assert!(target.is_none_or(|target| target.registered.key == ONE));
            })
        };
        route.place(0).publish(None);
        route.remove_type(&mut usage, ONE);
        add_type(&route, &mut usage, TWO);
        drain_thread.join().unwrap();
    });
}
