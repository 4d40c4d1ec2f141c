// SPDX-License-Identifier: Apache-2.0
#include "node/own_files.h"

#include <sys/stat.h>

#include "base/format.h"
#include "io/files.h"

namespace cistern::node {

OwnFiles::OwnFiles(Parts parts) : parts_(std::move(parts)), socket_(SocketNow()) {}

std::optional<OwnFiles::Identity> OwnFiles::SocketNow() const {
  struct stat info;
  if (parts_.socket.empty() || ::stat(parts_.socket.c_str(), &info) != 0) return std::nullopt;
  return Identity(info.st_dev, info.st_ino);
}

void OwnFiles::Look() {
  LookAtMemory();
  LookAtJournal();
  LookAtSocket();
  LookAtTrouble();
}

void OwnFiles::LookAtMemory() {
  if (memory_removed_ || io::IsNamed(parts_.memory_lock)) return;
  memory_removed_ = true;
  parts_.log.Log(
      LogLevel::kError, "memory_dir: the files in ", parts_.memory_directory,
      " were removed by another program, as logind does after a user's last logout (cistern doctor): this "
      "node goes on for its clients, the next one finds nothing of its memory");
}

void OwnFiles::LookAtJournal() {
  if (journal_given_up_) return;
  const bool apart = parts_.journal_lock >= 0;
  if (!io::IsNamed(apart ? parts_.journal_lock : parts_.memory_lock)) {
    journal_given_up_ = true;
    // Of a journal that lies with memory nobody is to find anything: nothing of memory is left either.
    parts_.journal.GiveUp(
        !apart ? Status()
               : Status(Code::kIoError,
                        Text("journal: its files in ", parts_.journal_directory,
                             " were removed by another program, and the lock of that directory: restart the "
                             "node, which then begins without what memory and flash hold")));
    return;
  }
  if (std::exchange(journal_removed_, parts_.journal.removed()) || !journal_removed_) return;
  parts_.log.Log(LogLevel::kWarning, "journal: its files in ", parts_.journal_directory,
                 " were removed by another program: they are written anew");
  parts_.settle();
}

void OwnFiles::LookAtSocket() {
  if (socket_removed_ || !socket_ || SocketNow() == socket_) return;
  socket_removed_ = true;
  parts_.log.Log(
      LogLevel::kError, "socket: ", parts_.socket,
      " was removed by another program: who is connected goes on, nobody else comes in; restart the "
      "node");
}

void OwnFiles::LookAtTrouble() {
  const Status& trouble = parts_.journal.trouble();
  if (trouble.ok() == journal_fails_) {
    journal_fails_ = !trouble.ok();
    if (journal_fails_) {
      parts_.log.Log(LogLevel::kError, trouble.message(),
                     "; until then drops and new namespaces are refused");
    } else {
      parts_.log.Log(LogLevel::kInfo, "journal: ", parts_.journal_directory, " takes what is written again");
    }
  }
  if (journal_fails_ || journal_given_up_ || spare_missing_ == (parts_.journal.spare_bytes() == 0)) return;
  spare_missing_ = !spare_missing_;
  if (spare_missing_) {
    parts_.log.Log(LogLevel::kWarning, "journal: ", parts_.journal_directory,
                   " has no room for its spare, so the next start may fail: make room there");
  } else {
    parts_.log.Log(LogLevel::kInfo, "journal: ", parts_.journal_directory, " has room for its spare again");
  }
}

}  // namespace cistern::node
