// SPDX-License-Identifier: Apache-2.0
#include "disk_writer.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/format.h"
#include "base/random.h"

namespace cistern {
namespace {

constexpr std::uint64_t kWriteBytes = 1u << 20;

}  // namespace

Result<std::unique_ptr<DiskWriter>> DiskWriter::Start(const std::string& path, std::uint64_t bytes,
                                                      int depth) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  if (!file.valid()) return Error(Code::kIoError, Text("open ", path, ": ", ErrnoText(errno)));
  std::unique_ptr<DiskWriter> writer(new DiskWriter(std::move(file)));
  struct stat info;
  if (::fstat(writer->file_.get(), &info) != 0)
    return Error(Code::kIoError, Text("size of ", path, ": ", ErrnoText(errno)));
  for (auto at = static_cast<std::uint64_t>(info.st_size); at < bytes; at += kWriteBytes) {
    if (!writer->WriteAt(at))
      return Error(Code::kIoError, Text("write ", path, " at ", at, ": ", ErrnoText(errno)));
  }
  for (int i = 0; i < depth; ++i) {
    writer->threads_.emplace_back([writer = writer.get(), bytes, i] {
      Random random(static_cast<std::uint64_t>(i) + 1);
      while (!writer->stop_ && !writer->failed_) {
        if (writer->WriteAt(random.Below(bytes / kWriteBytes) * kWriteBytes))
          ++writer->writes_;
        else
          writer->failed_ = true;
      }
    });
  }
  while (writer->writes_ == 0 && !writer->failed_) ::sched_yield();
  if (writer->failed_) return Error(Code::kIoError, Text("writing ", path, " failed"));
  return writer;
}

DiskWriter::~DiskWriter() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

bool DiskWriter::WriteAt(std::uint64_t offset) const {
  return ::pwrite(file_.get(), from_.data(), kWriteBytes, static_cast<off_t>(offset)) ==
         static_cast<ssize_t>(kWriteBytes);
}

}  // namespace cistern
