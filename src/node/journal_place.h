// SPDX-License-Identifier: Apache-2.0
// Which journal a node goes on with. It lies in the most durable directory that the node has: with flash in
// the journal's own, else with memory. A node that begins to have flash takes the one with memory along,
// which a crash at any point leaves right:
//
//   1. the journal is copied, both its files, whole and synced, into the durable directory;
//   2. flash is opened; when that fails nothing but the copy was made, and step 1 makes it anew next time;
//   3. the old one is removed, durably, before the copy is first written.
//
// So where both are there and are one and the same journal, the copy was never written and the old one
// counts. Where they are different ones a node ran without this flash meanwhile: that of flash counts, as the
// other knew nothing of what was dropped there, and nothing on flash is believed, as that one does not know
// what the other dropped.
#pragma once

#include <cstdint>
#include <string>

#include "base/task.h"
#include "cistern/status.h"
#include "io/loop.h"

namespace cistern::node {

struct JournalPlace {
  std::string directory;  // of the journal to go on with
  std::string obsolete;   // the journal in this one goes before the other is written; empty: there is none
  std::string note;       // what an operator should know; empty: nothing
  bool fresh = false;     // there is none yet: no record is believed that was there before
  bool missed_drops = false;  // a node ran with the obsolete one meanwhile: no record on flash is believed
};

// `memory` is the arena's directory, `durable` the journal's own, empty where there is none; both are locked
// by this node. Does step 1.
Task<Result<JournalPlace>> FindJournal(io::Loop& loop, std::string memory, std::string durable);

// Step 3.
Status LeaveObsoleteJournal(const JournalPlace& place);

}  // namespace cistern::node
