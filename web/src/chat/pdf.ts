// Loaded when the first PDF is attached.
import { GlobalWorkerOptions, getDocument, type PDFDocumentProxy } from "pdfjs-dist";
import worker from "pdfjs-dist/build/pdf.worker.min.mjs?file";
import { MOST_PDF_PAGES, MOST_PICTURED_PAGES } from "./file_kinds";

GlobalWorkerOptions.workerSrc = worker;

async function open(data: ArrayBuffer, name: string): Promise<PDFDocumentProxy> {
  try {
    return await getDocument({
      data: new Uint8Array(data),
      isEvalSupported: false,
      enableXfa: false,
      disableAutoFetch: true,
      useSystemFonts: true,
    } as Parameters<typeof getDocument>[0]).promise;
  } catch (error) {
    const kind = error instanceof Error ? error.name : "";
    throw new Error(
      kind === "PasswordException"
        ? `${name} has a password. Save it without one.`
        : `${name} is damaged: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/** Return the text of a PDF, page by page. */
export async function textOfPdf(file: File): Promise<string> {
  const pdf = await open(await file.arrayBuffer(), file.name);
  try {
    if (pdf.numPages > MOST_PDF_PAGES) {
      throw new Error(`${file.name} has ${pdf.numPages} pages; at most ${MOST_PDF_PAGES} can be attached.`);
    }
    const pages: string[] = [];
    for (let number = 1; number <= pdf.numPages; number += 1) {
      const page = await pdf.getPage(number);
      const content = await page.getTextContent();
      const text = content.items
        .map((item) => ("str" in item ? item.str + (item.hasEOL ? "\n" : "") : ""))
        .join("")
        .trim();
      pages.push(pdf.numPages === 1 ? text : `[Page ${number}]\n${text}`);
      page.cleanup();
    }
    if (pages.every((page) => page.replace(/^\[Page \d+\]/, "").trim() === "")) {
      throw new Error(`${file.name} has no text, only pictures of it. Attach its pages as pictures instead.`);
    }
    return pages.join("\n\n");
  } finally {
    await pdf.loadingTask.destroy();
  }
}

/** Return pictures of the pages of a PDF. */
export async function picturesOfPdf(file: File): Promise<File[]> {
  const pdf = await open(await file.arrayBuffer(), file.name);
  try {
    if (pdf.numPages > MOST_PICTURED_PAGES) {
      throw new Error(
        `${file.name} has ${pdf.numPages} pages; at most ${MOST_PICTURED_PAGES} can be attached as pictures.`,
      );
    }
    const pictures: File[] = [];
    for (let number = 1; number <= pdf.numPages; number += 1) {
      const page = await pdf.getPage(number);
      const size = page.getViewport({ scale: 1 });
      const scale = Math.min(2.5, 1600 / Math.max(size.width, size.height));
      const viewport = page.getViewport({ scale });
      const canvas = document.createElement("canvas");
      canvas.width = Math.ceil(viewport.width);
      canvas.height = Math.ceil(viewport.height);
      await page.render({ canvas, viewport }).promise;
      const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
      page.cleanup();
      if (blob === null) throw new Error(`Page ${number} of ${file.name} could not be drawn.`);
      pictures.push(new File([blob], `${file.name}, page ${number}`, { type: "image/png" }));
    }
    return pictures;
  } finally {
    await pdf.loadingTask.destroy();
  }
}
