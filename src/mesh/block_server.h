// SPDX-License-Identifier: Apache-2.0
// Serves blocks on rails: what is in memory is read as any reader reads it (R1), without a pin and without a
// step of the core; what lies on flash the core brings into memory first. The network takes the bytes from
// where they lie, and whether they were one record's all the while is said behind the last one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arena/reader.h"
#include "arena/words.h"
#include "catalog/catalog.h"
#include "mesh/peer_message.h"
#include "mesh/reach.h"
#include "net/rail.h"

namespace cistern::mesh {

// The core's part: blocks that are in the lower tier, and who uses those that conversations wrote.
class MemoryKeeper {
 public:
  // Brings the block into memory and keeps it there until LetGo of what it returns. kMiss: no tier has it;
  // kTooLate: not by the deadline, or not within `worth_us`; kBusy.
  virtual Task<Result<std::uint64_t>> Bring(ServedNamespace ns, catalog::BlockName block, Instant deadline,
                                            std::int64_t worth_us) = 0;
  virtual void LetGo(std::uint64_t kept) = 0;
  // The conversations that alone have written and used the block, as the record travels with them; empty: it
  // is shared. None: nothing is noted of it.
  virtual Task<std::optional<std::vector<std::uint64_t>>> NotesOf(ServedNamespace ns, BlockKey key) = 0;

 protected:
  ~MemoryKeeper() = default;
};

class BlockServer final : public net::RailSource {
 public:
  struct Parts {  // borrowed, but for the reader
    Executor& executor;
    const Clock& clock;
    arena::Reader<arena::Words> reader;
    const ServedView& view;
    MemoryKeeper& memory;
  };
  explicit BlockServer(const Parts& parts) : parts_(parts) {}
  BlockServer(const BlockServer&) = delete;
  BlockServer& operator=(const BlockServer&) = delete;

  Executor& executor() { return parts_.executor; }

  Task<Answer> Find(net::ConstPiece question, Instant deadline) override;
  bool Stands(std::uint64_t handle) const override;
  bool Sent(std::uint64_t handle) override;

 private:
  // A record between Find and Sent.
  struct OpenItem {
    arena::OpenRecord record;
    std::uint64_t kept = 0;  // by the core; 0: it is not
  };
  OpenItem& Take(std::uint64_t* handle);
  void Release(std::uint64_t handle);
  // Opens it in memory. kMiss, and kIoError where it is damaged.
  Status Open(const BlockRequest& request, const ServedNamespace& ns, OpenItem& item);
  Answer AnswerOf(const Answered& answered, OpenItem& item, std::uint64_t now_s,
                  std::vector<std::uint64_t> notes) const;

  const Parts parts_;
  std::vector<std::unique_ptr<OpenItem>> items_;
  std::vector<std::uint64_t> free_;  // of them
};

}  // namespace cistern::mesh
