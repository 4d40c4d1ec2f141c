// SPDX-License-Identifier: Apache-2.0
// A process beside the node that moves its arena into huge pages (base/huge_pages.h). The system does that
// under the lock of the address space that asks for it, and waits there for a turn of each processor, which a
// thread that spins (an engine's does) gives late: measured up to 20 s, in which the node could map no
// staging for a client that connects. Pages are the file's and not the address space's, so another process
// can ask; the node's own mappings find them huge at their next touch.
//
// The process is the node's program under another word. It has the arena's file to read and nothing else of
// the node, touches none of it, and ends with the node: its orders come over a socket, which ends then.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "cistern/status.h"

namespace cistern::memory {

// The only argument of the program as such a process.
inline constexpr std::string_view kHugePageWord = "move-into-huge-pages";

// What the program then does, until its node is gone. Returns the exit status.
int RunHugePageProcess();

class HugePageProcess final {
 public:
  // As long as Move waits: three times the longest that was measured.
  static constexpr int kMoveMs = 60'000;

  // `program` is a path; `arena_fd` is borrowed and may be open for reading alone. Blocks until the program
  // is executed. kIoError: it cannot be.
  static Result<std::unique_ptr<HugePageProcess>> Start(const std::string& program, int arena_fd,
                                                        int move_ms = kMoveMs);
  ~HugePageProcess();  // waits for its end, a second at most
  HugePageProcess(const HugePageProcess&) = delete;
  HugePageProcess& operator=(const HugePageProcess&) = delete;

  pid_t pid() const { return pid_; }

  // These are for any thread.

  // Moves what of the file's range is made of whole huge pages, as far as the system does. Waits for it, and
  // for other threads that do, for kMoveMs each. False: it was not moved yet, or the process is gone, or is
  // to end.
  bool Move(std::uint64_t offset, std::uint64_t bytes);
  // It is to end: from now on Move and Await return at once.
  void End();
  // Waits for its end. kGone, with how it ended: nobody told it to.
  Status Await();

 private:
  HugePageProcess(pid_t pid, Fd orders, Fd life, int move_ms);
  bool TakeAnswer() const;
  // Whether it has ended within so many ms (-1: any) and was reaped.
  bool Reap(int timeout_ms);

  const pid_t pid_;
  const Fd orders_;
  const Fd life_;  // hangs up when it has ended
  const int move_ms_;
  std::mutex turn_;           // of an order, until its answer, and of what follows
  bool answer_owed_ = false;  // of the last order
  std::mutex state_;          // of what follows
  bool ending_ = false;
  bool reaped_ = false;
  int how_ = 0;  // it ended, as of waitpid
};

}  // namespace cistern::memory
