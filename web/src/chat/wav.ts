// Recordings as WAV files, which servers read; they do not read what browsers record by themselves.

/** Samples a second, as models hear them. */
export const RATE = 16_000;

/** Return samples from -1 to 1 of one channel as a WAV file of 16 bits. */
export function wavOf(samples: Float32Array): Uint8Array<ArrayBuffer> {
  const file = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at: number, text: string) => {
    for (const [index, letter] of [...text].entries()) file.setUint8(at + index, letter.charCodeAt(0));
  };
  write(0, "RIFF");
  file.setUint32(4, file.byteLength - 8, true);
  write(8, "WAVEfmt ");
  file.setUint32(16, 16, true); // bytes of what follows up to the data
  file.setUint16(20, 1, true); // plain samples
  file.setUint16(22, 1, true); // channels
  file.setUint32(24, RATE, true);
  file.setUint32(28, 2 * RATE, true);
  file.setUint16(32, 2, true);
  file.setUint16(34, 16, true);
  write(36, "data");
  file.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, index) => {
    const clipped = Math.max(-1, Math.min(1, value));
    file.setInt16(44 + 2 * index, Math.round(clipped * 32767), true);
  });
  return new Uint8Array(file.buffer);
}
