// SPDX-License-Identifier: Apache-2.0
#include "node/journal_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "catalog/journal.h"
#include "io/files.h"

namespace cistern::node {
namespace {

// Its copy last: as long as that is there, so is the journal.
constexpr std::array<const char*, 2> kFiles = {"/journal", "/journal.copy"};

// An empty file is how a first start that was cut off leaves it.
bool Holds(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && info.st_size > 0;
}

bool Exists(const std::string& directory) {
  return Holds(directory + kFiles[0]) || Holds(directory + kFiles[1]);
}

Status Synced(const std::string& path, bool directory) {
  const Fd fd(::open(path.c_str(), O_CLOEXEC | (directory ? O_RDONLY | O_DIRECTORY : O_RDWR)));
  if (fd.valid() && ::fsync(fd.get()) == 0) return Status();
  return Status(Code::kIoError, Text("sync ", path, ": ", ErrnoText(errno)));
}

Status CopyJournal(const std::string& from, const std::string& to) {
  for (const char* file : kFiles) {
    if (!Holds(from + file)) continue;
    const std::string unfinished = to + file + ".taken";
    std::error_code error;
    std::filesystem::copy_file(from + file, unfinished, std::filesystem::copy_options::overwrite_existing,
                               error);
    if (error) {
      return Status(Code::kIoError,
                    Text("journal: ", from, file, " cannot be taken along to ", unfinished, ": ",
                         error.message(), "; free some room there, or name another --journal-dir"));
    }
    if (Status status = Synced(unfinished, false); !status.ok()) return status;
    if (::rename(unfinished.c_str(), (to + file).c_str()) != 0) {
      return Status(Code::kIoError, Text("rename ", unfinished, ": ", ErrnoText(errno)));
    }
  }
  return Synced(to, true);
}

// Which journal lies there; 0 where it does not say.
Task<Result<std::uint64_t>> IdIn(io::Loop& loop, std::string directory) {
  catalog::Journal journal(loop, std::move(directory), 0);
  auto contents = co_await journal.Open();
  if (!contents) co_return Error(std::move(contents.error()));
  co_return journal.id();
}

}  // namespace

Task<Result<JournalPlace>> FindJournal(io::Loop& loop, std::string memory, std::string durable) {
  JournalPlace place;
  place.directory = durable.empty() ? memory : durable;
  const bool here = Exists(place.directory);
  const bool old = !durable.empty() && Exists(memory);
  if (!old) {
    place.fresh = !here;
    co_return place;
  }
  place.obsolete = memory;
  bool same = !here;
  if (here) {
    Result<std::uint64_t> of_memory = co_await IdIn(loop, memory);
    if (!of_memory) co_return Error(std::move(of_memory.error()));
    Result<std::uint64_t> of_flash = co_await IdIn(loop, durable);
    if (!of_flash) co_return Error(std::move(of_flash.error()));
    same = *of_memory == *of_flash;
  }
  if (same) {
    place.note = Text("journal: taken along from ", memory, " to ", durable);
    if (Status status = CopyJournal(memory, durable); !status.ok()) co_return Error(std::move(status));
  } else {
    place.missed_drops = true;
    place.note = Text("journal: that in ", memory, " is another than that in ", durable,
                      " and is removed; what memory holds of it is not believed, nor what flash holds");
  }
  co_return place;
}

Status LeaveObsoleteJournal(const JournalPlace& place) {
  if (place.obsolete.empty()) return Status();
  for (const char* file : kFiles) {
    const std::string path = place.obsolete + file;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return Status(Code::kIoError, Text("remove ", path, ": ", ErrnoText(errno)));
    }
  }
  (void)::unlink((place.obsolete + "/journal.spare").c_str());
  return Synced(place.obsolete, true);
}

}  // namespace cistern::node
