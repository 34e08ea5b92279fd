//! Injects faults into what programs ask beside the kernel (`mount/front/src/fault.rs`) and checks that a test
//! detects each of them. Without a fault, the tests run by themselves.

use std::panic::catch_unwind;

use cairnfs_fuse::fault::InjectedFault::{self, *};
use cairnfs_fuse::fault::within;

use crate::{deferrals, programs};

/// Faults, and the test that fails with each.
const BITES: [(InjectedFault, fn()); 12] = [
    (KnownFileServed, programs::what_the_kernel_knows_is_its_own),
    (KnownNameServed, programs::what_the_kernel_knows_is_its_own),
    (
        CachedNamesIgnored,
        programs::names_and_listings_that_the_kernel_has_cached_are_changed_by_it,
    ),
    (
        AttributesKept,
        programs::directories_that_the_kernel_knows_are_announced,
    ),
    (
        LeaseOutlivesLookup,
        deferrals::a_file_that_is_looked_up_has_all_that_was_written,
    ),
    (
        LeaseOutlivesListing,
        deferrals::a_file_that_is_listed_has_all_that_was_written,
    ),
    (
        DeferredNotFinished,
        deferrals::what_had_returned_is_finished_before_the_tree_is_looked_at,
    ),
    (
        NothingSetAside,
        deferrals::a_full_volume_refuses_and_loses_nothing,
    ),
    (
        PermissionUnchecked,
        programs::only_what_is_certainly_permitted_is_done,
    ),
    (
        StickyBitIgnored,
        programs::only_what_is_certainly_permitted_is_done,
    ),
    (
        FilesOfAll,
        programs::files_are_of_their_program_and_end_with_it,
    ),
    (
        FilesStayOpen,
        programs::files_are_of_their_program_and_end_with_it,
    ),
];

#[test]
fn injected_faults_are_detected() {
    let missed = |(fault, test): &(InjectedFault, fn())| {
        let result = catch_unwind(|| within(*fault, test));
        result.is_ok().then_some(*fault)
    };
    let missed: Vec<InjectedFault> = BITES.iter().filter_map(missed).collect();
    assert!(missed.is_empty(), "unnoticed: {missed:?}");
}
