// SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace cistern {

Ran RunCommand(const std::string& command) {
  Ran ran;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "re");
  if (pipe == nullptr) return {-1, "no shell"};
  std::array<char, 4096> piece;
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), pipe))
    ran.said.append(piece.data(), n);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  while (!ran.said.empty() && ran.said.back() == '\n') ran.said.pop_back();
  return ran;
}

LoopDevice::LoopDevice(std::string image, std::uint64_t size_bytes) : image_(std::move(image)) {
  if (geteuid() != 0) {
    why_ = "only root may make a loop device";
    return;
  }
  const int fd = open(image_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) why_ = image_ + " cannot be made";
  if (fd >= 0) close(fd);
  if (!why_.empty()) return;
  const Ran ran = RunCommand("losetup --find --show '" + image_ + "'");
  if (ran.code != 0) {
    why_ = ran.said;
    return;
  }
  // Detached when nobody has it open any more, as this process has until it ends, however that comes.
  path_ = ran.said;
  held_ = Fd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  RunCommand("losetup --detach " + path_);
}

LoopDevice::~LoopDevice() { unlink(image_.c_str()); }

bool LoopDevice::Resize(std::uint64_t size_bytes) {
  if (truncate(image_.c_str(), static_cast<off_t>(size_bytes)) != 0) return false;
  return RunCommand("losetup --set-capacity " + path_).code == 0;
}

std::uint64_t LoopDevice::WritesInFlight() const {
  std::uint64_t reads = 0, writes = 0;
  std::ifstream("/sys/block/" + path_.substr(path_.rfind('/') + 1) + "/inflight") >> reads >> writes;
  return writes;
}

Mount::Mount(std::string directory, std::string arguments)
    : directory_(std::move(directory)), arguments_(std::move(arguments)) {
  std::filesystem::create_directory(directory_);
  if (geteuid() != 0) {
    why_ = "only root may mount";
    return;
  }
  const Ran ran = RunCommand("mount " + arguments_ + " '" + directory_ + "'");
  if (ran.code != 0) why_ = ran.said.empty() ? "mount failed" : ran.said;
}

Mount::~Mount() {
  (void)Freeze(false);
  if (why_.empty()) RunCommand("umount --lazy '" + directory_ + "'");
}

bool Mount::Change(const std::string& options) {
  return RunCommand("mount -o remount," + options + " '" + directory_ + "'").code == 0;
}

bool Mount::Freeze(bool frozen) {
  if (frozen_ == frozen) return true;
  if (RunCommand((frozen ? "fsfreeze --freeze '" : "fsfreeze --unfreeze '") + directory_ + "'").code != 0)
    return false;
  frozen_ = frozen;
  return true;
}

bool Mount::Unmount() { return RunCommand("umount '" + directory_ + "'").code == 0; }

bool Mount::Again() { return RunCommand("mount " + arguments_ + " '" + directory_ + "'").code == 0; }

std::uint64_t FillUp(const std::string& file) {
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return 0;
  const std::vector<char> bytes(1u << 20, 'x');
  std::uint64_t written = 0;
  for (std::size_t piece = bytes.size(); piece >= 1024;) {
    const ssize_t n = write(fd, bytes.data(), piece);
    // What is delayed meets the limit here.
    if (n > 0 && fsync(fd) == 0) {
      written += static_cast<std::uint64_t>(n);
    } else {
      piece /= 4;
    }
  }
  close(fd);
  return written;
}

}  // namespace cistern
