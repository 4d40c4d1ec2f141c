// SPDX-License-Identifier: Apache-2.0
// Devices and file systems that a test may break: loop devices over files, and what is mounted. Whatever was
// made is taken down again, and loop devices with a test that is killed. They need root and a kernel that has
// them; where they cannot be made, why() says so and the test is skipped.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"

namespace cistern {

struct Ran {
  int code = -1;
  std::string said;  // on both outputs
};
// By the shell.
Ran RunCommand(const std::string& command);

// A block device over a file that this makes, of zeroes.
class LoopDevice {
 public:
  LoopDevice(std::string image, std::uint64_t size_bytes);
  ~LoopDevice();
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  const std::string& path() const { return path_; }
  const std::string& why() const { return why_; }  // there is none; empty: there is
  // Its file has so many bytes from now on, and so has the device.
  bool Resize(std::uint64_t size_bytes);
  // Writes that the kernel has and that have not ended.
  std::uint64_t WritesInFlight() const;

 private:
  const std::string image_;
  std::string path_, why_;
  Fd held_;
};

// What is mounted at a directory that this makes.
class Mount {
 public:
  // `arguments` stand between `mount` and the directory.
  Mount(std::string directory, std::string arguments);
  ~Mount();
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  const std::string& path() const { return directory_; }
  const std::string& why() const { return why_; }
  bool Change(const std::string& options);  // mount -o remount
  bool Freeze(bool frozen);                 // its writes hang
  bool Unmount();
  bool Again();

 private:
  const std::string directory_, arguments_;
  std::string why_;
  bool frozen_ = false;
};

// Writes to a new file until the file system has no room left; returns how many bytes went in.
std::uint64_t FillUp(const std::string& file);

}  // namespace cistern
