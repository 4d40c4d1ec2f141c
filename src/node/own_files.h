// SPDX-License-Identifier: Apache-2.0
// The files that a node has open in directories that others clean up: whether its next start, and its
// clients, would still find them. Who has them open notices nothing when they are removed.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "catalog/journal.h"

namespace cistern::node {

class OwnFiles final {
 public:
  struct Parts {  // all borrowed but for texts
    Logger& log;
    std::string memory_directory;
    int memory_lock;
    catalog::Journal& journal;
    std::string journal_directory;
    int journal_lock;              // -1: the journal lies with memory
    std::string socket;            // that is listened at; empty: there is none
    std::function<void()> settle;  // writes what the journal says, not within this call
  };
  explicit OwnFiles(Parts parts);
  OwnFiles(const OwnFiles&) = delete;
  OwnFiles& operator=(const OwnFiles&) = delete;

  // Logs once what has changed. A journal whose files were removed is written anew; where its directory's
  // lock went with them it takes nothing any more, as the directory may be another node's by now.
  void Look();

  bool memory_removed() const { return memory_removed_; }
  bool socket_removed() const { return socket_removed_; }

 private:
  using Identity = std::pair<dev_t, ino_t>;
  std::optional<Identity> SocketNow() const;
  void LookAtMemory();
  void LookAtJournal();
  void LookAtSocket();
  void LookAtTrouble();

  const Parts parts_;
  const std::optional<Identity> socket_;
  bool memory_removed_ = false;
  bool journal_removed_ = false;
  bool journal_given_up_ = false;
  bool socket_removed_ = false;
  bool journal_fails_ = false;
  bool spare_missing_ = false;
};

}  // namespace cistern::node
