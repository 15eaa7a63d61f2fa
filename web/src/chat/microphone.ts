// The microphone: records in the browser's own format, which becomes a WAV file in the end.
import { RATE, wavOf } from "./wav";

/** A recording ends by itself after so many seconds. */
export const LONGEST_S = 600;

/** A recording that goes on. */
export class Microphone {
  private readonly parts: Blob[] = [];
  private readonly ended: Promise<void>;

  private constructor(
    private readonly stream: MediaStream,
    private readonly recorder: MediaRecorder,
  ) {
    recorder.addEventListener("dataavailable", (event) => this.parts.push(event.data));
    this.ended = new Promise((resolve) => recorder.addEventListener("stop", () => resolve()));
    recorder.start(1000);
  }

  /** Ask for the microphone and begin. Raises `Error` that says why there is none. */
  static async start(): Promise<Microphone> {
    // Browsers have no such object for pages that others could have changed on their way.
    if (navigator.mediaDevices === undefined) {
      throw new Error("Browsers lend the microphone only to pages over HTTPS or at localhost.");
    }
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
      return new Microphone(stream, new MediaRecorder(stream));
    } catch (error) {
      throw new Error(REASONS[(error as DOMException).name] ?? "The microphone does not work.");
    }
  }

  /** End the recording and return it as a WAV file. Raises `Error` if nothing was recorded. */
  async stop(): Promise<File> {
    this.cancel();
    await this.ended;
    const recorded = await new Blob(this.parts).arrayBuffer();
    const context = new OfflineAudioContext(1, 1, RATE); // decodes at its own rate
    let sound: AudioBuffer;
    try {
      sound = await context.decodeAudioData(recorded);
    } catch {
      throw new Error("Nothing was recorded.");
    }
    return new File([wavOf(mono(sound))], "Recording.wav", { type: "audio/wav" });
  }

  /** End the recording and let go of the microphone. */
  cancel(): void {
    if (this.recorder.state !== "inactive") this.recorder.stop();
    for (const track of this.stream.getTracks()) track.stop();
  }
}

const REASONS: Record<string, string> = {
  NotAllowedError: "The browser does not lend this page the microphone. Allow it in the browser's settings.",
  NotFoundError: "There is no microphone.",
  NotReadableError: "Another program has the microphone.",
};

/** Return the mean of all channels. */
function mono(sound: AudioBuffer): Float32Array {
  const found = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    sound.getChannelData(channel).forEach((value, index) => {
      found[index]! += value / sound.numberOfChannels;
    });
  }
  return found;
}
