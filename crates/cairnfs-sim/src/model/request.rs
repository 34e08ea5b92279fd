//! A request of a front, which may consist of several calls: what they change is one transaction.
//!
//! The first transaction of each call joins the last one of the call before. So all of a request
//! survives, or nothing; but a call that is allowed to have several transactions keeps them, and
//! contents are written block by block as ever.

use super::Model;
use super::chain::{OpId, Part, Value, Version};

/// The request under way, if there is one.
#[derive(Debug, Default)]
pub(super) struct Request {
    open: bool,
    /// The last transaction of its calls.
    last: Option<OpId>,
    /// What the next transaction joins.
    joins: Option<OpId>,
}

impl Request {
    /// A further call.
    pub(super) fn next_call(&mut self) {
        self.joins = self.last;
    }

    /// What a transaction is to join.
    pub(super) fn takes(&mut self) -> Option<OpId> {
        self.joins.take()
    }

    /// A transaction was added, or joined the one before.
    pub(super) fn added(&mut self, op: OpId) {
        self.last = self.open.then_some(op);
    }
}

impl Model {
    /// The calls from here on belong to one request.
    pub fn begin_request(&mut self) {
        self.request = Request {
            open: true,
            ..Request::default()
        };
    }

    /// The request has ended.
    pub fn end_request(&mut self) {
        self.request = Request::default();
    }

    /// An earlier transaction makes these values, too, and needs those versions.
    pub(super) fn join(
        &mut self,
        id: OpId,
        makes: Vec<(Part, Value)>,
        needs: Vec<Version>,
    ) -> OpId {
        let makes: Vec<_> = makes
            .into_iter()
            .map(|(part, value)| self.push(id, part, value))
            .collect();
        if let Some(op) = self.ops.get_mut(id) {
            op.makes.extend(makes);
            op.needs.extend(needs);
        }
        id
    }
}
