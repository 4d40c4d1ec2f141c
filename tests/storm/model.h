// SPDX-License-Identifier: Apache-2.0
// What may be visible, by the promises alone. The model is told what clients asked for and when it was
// answered; it knows nothing of how the store works. Where calls overlap it allows every order in which they
// could have taken effect. A breach ends the run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "base/format.h"
#include "content.h"

namespace cistern::storm {

// Ends the process with the message; who replays the seed sees it again.
[[noreturn]] void Violation(const std::string& what);

using PutNo = std::uint32_t;
using Moment = std::uint64_t;  // counts what happens; two happenings never share one

struct BlockId {
  std::uint32_t ns = 0;
  std::uint16_t group = 0;
  BlockCode code = 0;
  friend bool operator==(const BlockId&, const BlockId&) = default;
};
std::string TextOf(const BlockId& block);

struct PutPart {
  std::uint64_t bytes = 0;
  std::uint32_t open = 0;  // writes under way
  bool committed = false;  // a write was answered well, or never answered
  Moment last_done = 0;
};

struct Put {
  BlockId block;
  BlockCode parent = 0;
  std::uint64_t owner = 0;
  std::uint32_t ttl_s = 0;
  std::uint64_t conversation = 0;  // 0: none
  bool held = false;
  bool publish_asked = false;  // by its owner
  bool any_bytes = false;      // its client changed them without saying what they are
  bool refutable = false;      // its client gave sums of something else
  std::vector<PutPart> parts;
  Moment first_asked = 0;
  Moment capable_until = 0;  // 0: it never could have been visible, or it still can
  std::uint64_t least_expiry = 0, most_expiry = 0;
};

// A visible record, as a reader proved it.
struct Sighting {
  BlockId block;
  std::uint64_t put = 0;
  std::uint64_t parts = 0;
  std::uint64_t body_bytes = 0;
  BlockCode parent = 0;
  std::uint32_t expiry = 0;
};

class Model {
 public:
  // Says on standard error what it is told, when `trace`.
  Model(std::uint32_t namespaces, bool trace);

  bool tracing() const { return trace_; }
  template <class... Args>
  void Trace(const Args&... args) const {
    if (trace_)
      std::fprintf(stderr, "%8llu %s\n", static_cast<unsigned long long>(moment_), Text(args...).c_str());
  }

  Moment Now() { return ++moment_; }
  PutNo NewPut(Put put);
  const Put& put(PutNo number) const { return puts_[number]; }
  std::size_t puts() const { return puts_.size(); }

  // `time_s` is the time by which the store may count: wall clock or high water.
  void WriteAsked(PutNo number, std::uint32_t part, std::uint64_t time_s);
  void WriteAnswered(PutNo number, std::uint32_t part, bool ok, std::uint64_t time_s);
  void WriteLost(PutNo number, std::uint32_t part, std::uint64_t time_s);  // the node died with it
  void BytesUnknown(PutNo number) { puts_[number].any_bytes = true; }
  void SumsWrong(PutNo number) { puts_[number].refutable = true; }
  void PublishAsked(PutNo number, std::uint64_t owner);

  // What ends a put that is not whole: an abandon, the end of its owner, the death of the node. `asked` is
  // when that was asked for.
  void UnfinishedEnded(PutNo number, Moment asked);
  // A drop that was acknowledged: what was written before it was asked for is gone, whole or not.
  void Dropped(std::uint32_t ns, BlockCode code, Moment asked);
  void NamespaceDropped(std::uint32_t ns, Moment asked);
  // After a restart: all that is not found now, whatever was hoped for it.
  void Absent(PutNo number);

  // Could have been visible at `since` or later.
  bool Legal(PutNo number, Moment since) const;
  bool AnyLegal(const BlockId& block, Moment since) const;
  // Breaches of promises 1, 2 and 7 by what a reader saw that began at `since`, when the store's time was
  // at least `time_s`. Bytes are the caller's to compare.
  void CheckSighting(const Sighting& seen, Moment since, std::uint64_t time_s) const;

  // Whether it can no longer be visible, nor could be at `since` or later.
  bool OverBefore(PutNo number, Moment since) const;

  // Whether the block hangs below `code` by anything that anybody ever wrote.
  bool Below(std::uint32_t ns, BlockCode block, BlockCode code) const;
  // Of a block: all puts ever.
  const std::vector<PutNo>& PutsOf(const BlockId& block) const;
  bool odd_parents(std::uint32_t ns) const { return odd_parents_[ns]; }

 private:
  static bool Capable(const Put& put);
  void Wipe(PutNo number, Moment asked);
  std::size_t At(const BlockId& block) const;

  const bool trace_;
  Moment moment_ = 0;
  std::deque<Put> puts_;  // an actor may look at one over a stop
  std::vector<std::vector<PutNo>> by_block_;
  std::vector<bool> odd_parents_;
};

}  // namespace cistern::storm
