# Texts of device code as C: cmake -DNAME=checksum -DSOURCE=checksum.cu -DTEXT=out.cu -DOUT=out.c [-DNVCC= -DARCH=] -P
#
# TEXT gets the source with its includes put in, which is what NVRTC and nvcc read; OUT gets it as bytes, with the PTX
# that nvcc makes of it, or an empty text where there is no nvcc or it fails.
cmake_policy(VERSION 3.18)

# Replace every #include "..." line by the file itself; headers have include guards, so a second copy does no harm.
function(read_whole path out)
  file(READ "${path}" text)
  get_filename_component(folder "${path}" DIRECTORY)
  while(text MATCHES "#include \"([^\"]+)\"")
    set(line "${CMAKE_MATCH_0}")
    read_whole("${folder}/${CMAKE_MATCH_1}" inner)
    string(REPLACE "${line}" "${inner}" text "${text}")
  endwhile()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

function(as_bytes path out)
  file(READ "${path}" hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  set(${out} "${hex}" PARENT_SCOPE)
endfunction()

read_whole("${SOURCE}" whole)
file(WRITE "${TEXT}" "${whole}")
as_bytes("${TEXT}" source)

set(ptx "")
if(NVCC)
  execute_process(COMMAND "${NVCC}" -ptx -arch=compute_${ARCH} -O3 -o "${TEXT}.ptx" "${TEXT}"
    RESULT_VARIABLE failed ERROR_VARIABLE message OUTPUT_VARIABLE message)
  if(failed)
    message(WARNING "no PTX of ${NAME}: nvcc failed: ${message}")
  else()
    # nvcc marks PTX with its own version, which no older driver reads. These kernels use nothing new, so it is marked
    # with the version of the oldest driver that the library takes (CUDA 11.8), if the assembler agrees.
    file(READ "${TEXT}.ptx" text)
    string(REGEX REPLACE "\n\\.version [0-9.]+" "\n.version 7.8" text "${text}")
    file(WRITE "${TEXT}.old.ptx" "${text}")
    execute_process(COMMAND "${NVCC}" -cubin -arch=sm_${ARCH} -o "${TEXT}.cubin" "${TEXT}.old.ptx"
      RESULT_VARIABLE failed ERROR_QUIET OUTPUT_QUIET)
    if(failed)
      as_bytes("${TEXT}.ptx" ptx)
    else()
      as_bytes("${TEXT}.old.ptx" ptx)
    endif()
  endif()
endif()

file(WRITE "${OUT}" "/* Made by src/kernels/embed.cmake from ${NAME}.cu. */
extern const char ms__${NAME}_source[];
extern const char ms__${NAME}_ptx[];
const char ms__${NAME}_source[] = {
${source}0x00};
const char ms__${NAME}_ptx[] = {
${ptx}0x00};
")
